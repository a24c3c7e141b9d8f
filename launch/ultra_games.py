"""What ULTRA's script needs of each game: the game, how it is told, how PPO trains on it, and how it is drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

import envs
from nlrl_jax.algorithms.ppo import PPOConfig, Transitions
from nlrl_jax.backends.scripted import Script
from nlrl_jax.roles.trajectories import AnalystRoles
from nlrl_jax.types import ControlGame


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """A game with everything that goes with it.

    Attributes:
      game: see `envs.make_control`.
      roles, scripts: what the language model is told, and the rule-based analyst.
      ppo: hyperparameters of the base agent; refinement has another learning rate.
      human_reward: steps -> [T, B], of HLC; None where the paper has none.
      draw: env states, leading axis [T] -> pictures uint8 [T, H, W, 3].
      score: what a return is called.
    """

    game: ControlGame
    roles: AnalystRoles
    scripts: Mapping[str, Script]
    ppo: PPOConfig
    human_reward: Callable[[Transitions], jax.Array] | None
    draw: Callable[[Any], np.ndarray]
    score: str


def make(name: str, physics: str = "auto", cell: int = 1, points: int = 1) -> Setting:
    """The setting of a game.

    Raises:
      ValueError: an unknown game.
    """
    if name == "pong":
        return _pong(cell, points)
    if name not in envs.CONTROL_GAMES:
        raise ValueError(f"game {name!r} is not known; choose one of {', '.join(envs.CONTROL_GAMES)}")
    return _robot(name, physics)


def _pong(cell: int, points: int) -> Setting:
    from envs.pong import prompts as prompts
    from envs.pong import rule_based as scripted
    from envs.pong.env import pong_return

    return Setting(
        game=envs.make_control("pong", points=points, cell=cell),
        roles=prompts.roles(points=points),
        scripts=scripted.SCRIPTS,
        ppo=PPOConfig(
            num_envs=16, num_steps=128, epochs=10, num_minibatches=32, learning_rate=3e-4, normalize_reward=False
        ),
        human_reward=pong_return,
        draw=_pong_frames,
        score="mean outcome of a point" if points == 1 else f"points won less points lost, first to {points}",
    )


def _pong_frames(states: Any) -> np.ndarray:
    from envs.pong.env import draw

    frames = np.asarray(jax.vmap(draw)(states.racket, states.opponent, states.ball))
    grey = (255 * (1 - frames)).astype(np.uint8)
    return np.repeat(grey[..., None].repeat(3, -1).repeat(3, 1), 3, 2)  # three pixels a cell


def _robot(name: str, physics: str) -> Setting:
    from envs.locomotion import prompts as prompts
    from envs.locomotion import rule_based as scripted
    from envs.locomotion.env import stretches
    from envs.locomotion.frames import frames

    return Setting(
        game=envs.make_control(name, physics=physics),
        roles=prompts.roles(name),
        scripts=scripted.SCRIPTS,
        ppo=PPOConfig(
            num_envs=16,
            num_steps=128,
            epochs=10,
            num_minibatches=32,
            learning_rate=3e-4,
            entropy_coef=0.0,
        ),
        human_reward=stretches if name == "ant" else None,
        draw=lambda states: frames(name, np.asarray(states.qpos)),
        score="return",
    )


def statistics(obs: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation [D] of the observations of recorded episodes: [T, N, D] of which `steps` [N] count."""
    counted = np.arange(len(obs))[:, None] < steps
    rows = obs.reshape(*obs.shape[:2], -1)[counted]
    return rows.mean(0), rows.std(0)
