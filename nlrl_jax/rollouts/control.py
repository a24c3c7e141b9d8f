"""Whole episodes of a control agent: their returns, or all their steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax import networks
from nlrl_jax.networks import Agent, RunningMoments
from nlrl_jax.roles.trajectories import ControlEpisode
from nlrl_jax.updates import where


class ControlPlayer(NamedTuple):
    """An agent in its environment: networks with `params` that see observations normalised by `moments`."""

    env: Any
    env_params: Any
    agent: Agent
    params: Any
    moments: RunningMoments

    def reset(self, key: jax.Array, episodes: int) -> tuple[jax.Array, Any]:
        """Fresh episodes: (obs [E, ...], their states)."""
        return jax.vmap(self.env.reset_env, in_axes=(0, None))(jax.random.split(key, episodes), self.env_params)

    def act(self, key: jax.Array, obs: jax.Array, deterministic: bool) -> jax.Array:
        """Actions [E, ...]: sampled, or the most likely ones, the mean of continuous ones."""
        out = self.agent.policy(self.params, self.moments, obs)
        return networks.mode(*out) if deterministic else networks.sample(key, *out)

    def step(self, key: jax.Array, env_state: Any, action: jax.Array) -> tuple[jax.Array, Any, jax.Array, jax.Array]:
        """(obs, state, reward, terminated) after one step of each episode."""
        step_env = jax.vmap(self.env.step_env, in_axes=(0, 0, 0, None))
        keys = jax.random.split(key, len(action))
        return step_env(keys, env_state, self.agent.to_env(action), self.env_params)[:4]

    def truncated(self, env_state: Any) -> jax.Array:
        """Which episodes are over without a terminal state: bool [E]."""
        return jax.vmap(self.env.is_truncated, in_axes=(0, None))(env_state, self.env_params)


def evaluate(
    player: ControlPlayer,
    key: jax.Array,
    episodes: int,
    deterministic: bool = False,
    guide: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Returns and lengths of whole episodes: float32 [E], int32 [E]. Stops at the end of the last one.

    Args:
      deterministic: see `ControlPlayer.act`.
      guide: (obs [E, ...], the agent's actions [E, ...]) -> the actions that are executed.
    """
    key_reset, key_play = jax.random.split(key)
    obs, env_state = player.reset(key_reset, episodes)

    def step(carry):
        t, env_state, obs, done, total, steps = carry
        key_act, key_step = jax.random.split(jax.random.fold_in(key_play, t))
        action = player.act(key_act, obs, deterministic)
        action = guide(obs, action) if guide else action
        obs, env_state, reward, terminated = player.step(key_step, env_state, action)
        # Episodes that are over are stepped on until the last one is, but count no more.
        total, steps = total + jnp.where(done, 0.0, reward), steps + ~done
        done = done | terminated | player.truncated(env_state)
        return t + 1, env_state, obs, done, total, steps

    # A `while_loop`: it stops with the longest episode, but keeps no steps.
    start = (0, env_state, obs, jnp.zeros(episodes, bool), jnp.zeros(episodes), jnp.zeros(episodes, jnp.int32))
    *_, total, steps = jax.lax.while_loop(lambda carry: ~jnp.all(carry[3]), step, start)
    return total, steps


class Trajectories(NamedTuple):
    """N episodes of maximum T steps.

    env_state, obs: before each step, leading axes [T, N]. last_obs: [N, ...], after the last one.
    action, reward: [T, N]. steps: int32 [N], how many count. terminated: bool [N].
    """

    env_state: Any
    obs: jax.Array
    last_obs: jax.Array
    action: jax.Array
    reward: jax.Array
    steps: jax.Array
    terminated: jax.Array


def record(
    player: ControlPlayer, key: jax.Array, episodes: int, max_steps: int, deterministic: bool = False
) -> Trajectories:
    """Plays `episodes` and records every step. Episodes are truncated at `max_steps`. deterministic: as `evaluate`."""
    key_reset, key_play = jax.random.split(key)
    obs, env_state = player.reset(key_reset, episodes)

    def step(carry, key):
        env_state, obs, last_obs, done, terminated, steps = carry
        key_act, key_step = jax.random.split(key)
        action = player.act(key_act, obs, deterministic)
        next_obs, next_state, reward, ended = player.step(key_step, env_state, action)
        row = (env_state, obs, player.agent.to_env(action), jnp.where(done, 0.0, reward))
        # The observation after an episode's own last step, whatever its environment does later.
        last_obs = where(done, last_obs, next_obs)
        terminated, steps = terminated | (ended & ~done), steps + ~done
        done = done | ended | player.truncated(next_state)
        return (next_state, next_obs, last_obs, done, terminated, steps), row

    # A `scan` of `max_steps`, which keeps them all.
    none = jnp.zeros(episodes, bool)
    start = (env_state, obs, obs, none, none, jnp.zeros(episodes, jnp.int32))
    (_, _, last_obs, _, terminated, steps), rows = jax.lax.scan(step, start, jax.random.split(key_play, max_steps))
    return Trajectories(*rows[:2], last_obs, *rows[2:], steps, terminated)


def episodes_of(trajectories: Trajectories) -> list[ControlEpisode]:
    """Trajectories as episodes on the host, each with its own length."""
    _, obs, last_obs, action, reward, steps, terminated = map(np.asarray, trajectories._replace(env_state=0))
    return [
        ControlEpisode(
            n, np.concatenate([obs[:T, n], last_obs[None, n]]), action[:T, n], reward[:T, n], bool(terminated[n])
        )
        for n, T in enumerate(steps)
    ]
