"""What games of discrete actions share as gymnax environments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from gymnax.environments import environment, spaces


class DiscreteGame(environment.Environment):
    """A gymnax environment with discrete actions and observations in a box.

    A game adds `observe`, `is_terminated`, `start(key, params)`, which returns the first state of an episode, and
    `advance(key, state, action, params)`, which returns (state, reward, terminated, info).

    Args:
      words: of the actions. shape: of an observation. params: the default parameters.
      low, high: bounds of an observation's numbers.
    """

    def __init__(
        self, words: tuple[str, ...], shape: tuple[int, ...], params: Any, low: jax.Array = 0, high: jax.Array = 1
    ):
        super().__init__()
        self.words, self.shape, self.low, self.high = words, shape, low, high
        self._default_params = params

    @property
    def default_params(self) -> Any:
        return self._default_params

    @property
    def num_actions(self) -> int:
        return len(self.words)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        """Begins an episode: (obs, state); see `start`."""
        state = self.start(key, params)
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        """Steps an episode: (obs, state, reward, terminated, info); see `advance`."""
        state, reward, terminated, info = self.advance(key, state, action, params)
        return self.observe(key, state, action, params), state, reward, terminated, info

    def action_space(self, params: Any = None) -> spaces.Discrete:
        return spaces.Discrete(self.num_actions)

    def observation_space(self, params: Any = None) -> spaces.Box:
        return spaces.Box(self.low, self.high, self.shape, jnp.float32)
