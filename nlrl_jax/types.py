"""The shared nouns: what a text game is, and what an episode of one leaves behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from nlrl_jax.text.template import Template


@dataclasses.dataclass(frozen=True, eq=False)
class TextGame:
    """A text-mediated stochastic game (MS-GRPO, section "Framework"): an environment and its text.

    The environment is a gymnax 1.x `Environment`; its `reset_env(key, params) -> (obs, state)` and
    `step_env(key, state, action, params) -> (obs, state, reward, terminated, info)` are pure.
    The observation function O is `observation.render(fields(state))`.

    Attributes:
      name: e.g. "frozen_lake".
      env: the gymnax environment (one player's view; opponents move inside `step_env`).
      params: its parameters.
      rules: static observation text: the rules and the goal.
      actions: action words; the position is the environment's action id.
      observation: template of the dynamic observation text.
      fields: one state -> the int arrays that the template's slots read. Pure; works under `vmap`.
      board: template of the board alone, as a person would draw it (reads the same fields).
      success: one state -> bool, whether the episode counts as won; None where a game has no such notion.
      max_actions_per_turn: how many actions one reply may name.
    """

    name: str
    env: Any
    params: Any
    rules: str
    actions: tuple[str, ...]
    observation: Template
    fields: Callable[[Any], dict[str, jax.Array]]
    board: Template
    success: Callable[[Any], jax.Array] | None = None
    max_actions_per_turn: int = 3
