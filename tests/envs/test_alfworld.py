"""ALFWorld in the TextWorld engine: text, worker processes that die, a person's own folder."""

import importlib.util
import json
import os
import random
import signal

import pytest

if any(importlib.util.find_spec(name) is None for name in ("alfworld", "textworld", "fast_downward")):
    pytest.skip("needs ALFWorld's engine (`make install` puts it there)", allow_module_level=True)

import envs
from envs.alfworld import data, games, workers
from envs.alfworld.engine import Engine, names_of
from envs.alfworld.host import State
from envs.alfworld.transcripts import EXPERT, choose, walk
from envs.alfworld.belief import Belief
from envs.alfworld.workers import Answer, Request, Workers
from envs.alfworld.world import NOTHING, World, plan
from nlrl_jax.rollouts.host_games import Move, play
from nlrl_jax.run.planning import tasks_of
