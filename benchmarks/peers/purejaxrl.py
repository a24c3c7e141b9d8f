"""PureJaxRL's PPO for `benchmarks.ppo`, from a checkout of luchris429/purejaxrl, which is taken as it is.

gymnax 1.x's six-valued `step` is folded to the five values that it expects. It needs distrax; brax and navix, which it
imports but does not use here, may be missing.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnax


class FiveValues:
    """A gymnax 1.x environment as gymnax 0.0.x had it: one `done`, and nothing in `info` but the discount."""

    def __init__(self, env):
        self._env = env

    def __getattr__(self, name):
        return getattr(self._env, name)

    def step(self, key, state, action, params=None):
        obs, state, reward, terminated, truncated, info = self._env.step(key, state, action, params)
        return obs, state, reward, terminated | truncated, {"discount": info["discount"]}


@functools.cache
def load(directory: str) -> types.ModuleType:
    """PureJaxRL's `ppo.py` as a module, with gymnax folded."""
    if importlib.util.find_spec("navix") is None:
        sys.modules["navix"] = types.ModuleType("navix")
    if importlib.util.find_spec("brax") is None:
        training = types.SimpleNamespace(EpisodeWrapper=None, AutoResetWrapper=None)
        names = ("brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training")
        sys.modules.update({name: types.ModuleType(name) for name in names[:3]}, **{names[3]: training})
        sys.modules["brax"].envs = sys.modules["brax.envs"]
    source = Path(directory, "purejaxrl")
    sys.path.insert(0, str(source))  # for its wrappers.py
    spec = importlib.util.spec_from_file_location("purejaxrl_ppo", source / "ppo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def make(name):
        env, params = gymnax.make(name)
        return FiveValues(env), params

    module.gymnax = types.SimpleNamespace(make=make)
    return module


def make_train(directory: str, game: str, steps: int) -> Callable[..., Any]:
    """A key -> {"runner_state", "metrics"}, with the hyperparameters of its `__main__`."""
    config = {"LR": 2.5e-4, "NUM_ENVS": 4, "NUM_STEPS": 128, "TOTAL_TIMESTEPS": steps, "UPDATE_EPOCHS": 4}
    config |= {"NUM_MINIBATCHES": 4, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2, "ENT_COEF": 0.01}
    config |= {"VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "ACTIVATION": "tanh", "ENV_NAME": game, "ANNEAL_LR": True}
    return load(directory).make_train(config)
