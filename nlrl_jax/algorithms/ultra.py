"""ULTRA: a language model marks the critical states of a sub-optimal agent, and PPO refines it (algorithm 1).

    findings = analyse(episodes, roles, model, seed)          # on the host: identification, case analysis, rewards
    table = make_table(findings, game)                        # arrays
    hooks = guidance(game, GuidanceConfig(alpha=0.5))         # equations 1 and 2, for `ppo.make_update`
    state = base.replace(aux=table)

ULTRA-A replaces actions (equation 1), ULTRA-R adds rewards (equation 2), ULTRA-RA does both.

What the paper leaves open, and our choice:
- "s_t in the table": the same `state_code` where the game has one (Pong: ball, velocity, our racket), else the nearest
  critical state within `radius`, the root mean square over the observation's dimensions after normalisation.
- Rewards of a language model are asked for once, before refinement, and kept: for the action taken in a critical
  state and for the one suggested instead. While refining, another action gets the reward of the judged one nearest to
  it (continuous), or none (discrete).
- What the policy learns of a replaced action: as in algorithm 1, the executed action goes into the data, with its
  log-probability under the policy before the update, so that its ratio starts at 1. It is not weighted by the
  probability 1 with which it was executed: that would take nearly all weight from just those actions that the policy
  has yet to learn. But the data then hold no comparison with what the policy itself would have done there, V soon
  expects the correction, and the advantage of a suggestion is noise around 0: refined so to the letter, Pong's agent
  plays worse without its table than plain PPO (docs/measurements.md). So the normalised advantage of a replaced action
  is at least `PPOConfig.guided_floor`, a few deviations: a suggestion is also imitated. -inf is the letter.
- The refined agent is evaluated alone, without the table.
- An episode's verdicts on the same state as another's are merged: suggestions by vote, rewards by their mean. Where the
  action taken was found proper, the vote is for it; a verdict that says nothing usable of the action has none.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.algorithms.analyst import CriticalState
from nlrl_jax.algorithms.ppo import Hooks
from nlrl_jax.roles.trajectories import Action
from nlrl_jax.types import ControlGame


@flax.struct.dataclass
class LookupTable:
    """K critical states as arrays, sorted by code; K is at least 1, and an empty table has one row that nothing meets.

    codes: int32 [K], or zeros. keys: float32 [K, D], normalised observations. mean, scale: float32 [D], of the
    normalisation. action: [K] or [K, A], the suggestion, and suggested: bool [K], whether there is one.
    judged: [K, M] or [K, M, A], the actions that have a reward; rewards, known: [K, M].
    """

    codes: jax.Array
    keys: jax.Array
    mean: jax.Array
    scale: jax.Array
    action: jax.Array
    suggested: jax.Array
    judged: jax.Array
    rewards: jax.Array
    known: jax.Array


NOWHERE = -1  # the code of the row that stands for an empty table
FAR = 1e9  # and its key


def make_table(
    states: Sequence[CriticalState], game: ControlGame, mean: np.ndarray | None = None, scale: np.ndarray | None = None
) -> LookupTable:
    """The lookup table of algorithm 1 as arrays.

    Args:
      mean, scale: [D], of the observations the base agent saw; only continuous games need them.
    """
    space = game.env.observation_space(game.params)
    D = int(np.prod(space.shape))
    mean = np.zeros(D, np.float32) if mean is None else np.asarray(mean, np.float32)
    scale = np.ones(D, np.float32) if scale is None else np.maximum(np.asarray(scale, np.float32), 1e-6)
    kind = game.env.action_space(game.params)
    shape = () if hasattr(kind, "n") else kind.shape
    groups = _grouped(states, game)
    M = max([1, *(len(_rewards(group)) for _, group in groups)])
    K = max(len(groups), 1)
    dtype = np.float32 if shape else np.int32
    codes, keys = np.full(K, NOWHERE, np.int32), np.full((K, D), FAR, np.float32)
    action, suggested = np.zeros((K, *shape), dtype), np.zeros(K, bool)
    judged, rewards, known = np.zeros((K, M, *shape), dtype), np.zeros((K, M), np.float32), np.zeros((K, M), bool)
    for row, (code, group) in enumerate(groups):
        codes[row] = code
        keys[row] = (group[0].observation.reshape(-1) - mean) / scale
        verdicts = [(state.verdict.action, state.taken) for state in group if state.verdict.judged]
        if any(better is not None for better, _ in verdicts):
            votes = Counter(taken if better is None else better for better, taken in verdicts)
            action[row], suggested[row] = votes.most_common(1)[0][0], True
        for m, (taken, reward) in enumerate(_rewards(group).items()):
            judged[row, m], rewards[row, m], known[row, m] = taken, reward, True
    return LookupTable(*(jnp.asarray(x) for x in (codes, keys, mean, scale, action, suggested, judged, rewards, known)))


def _grouped(states: Sequence[CriticalState], game: ControlGame) -> list[tuple[int, list[CriticalState]]]:
    """(code, the critical states that are that state), by code; each on its own where states are continuous."""
    if game.state_code is None:
        return [(0, [state]) for state in states]
    groups: dict[int, list[CriticalState]] = {}
    if states:
        codes = np.asarray(game.state_code(jnp.asarray(np.stack([state.observation for state in states]))))
        for code, state in zip(codes, states, strict=True):
            groups.setdefault(int(code), []).append(state)
    return sorted(groups.items())


def _rewards(group: Sequence[CriticalState]) -> dict[Action, float]:
    """The mean reward of each action that was judged."""
    told: dict[Action, list[float]] = {}
    for state in group:
        for action, reward in state.rewards.items():
            told.setdefault(action, []).append(reward)
    return {action: sum(rewards) / len(rewards) for action, rewards in told.items()}


@dataclasses.dataclass(frozen=True)
class GuidanceConfig:
    """What refinement takes from the table.

    Attributes:
      actions: replace actions in critical states (ULTRA-A).
      rewards: add alpha * r^LLM there (ULTRA-R).
      alpha: the paper: 0.5 for Pong, 0.1 for the robots.
      radius: how near a continuous state must be to a critical one.
    """

    actions: bool = True
    rewards: bool = True
    alpha: float = 0.5
    radius: float = 0.3

    def __post_init__(self):
        if not self.radius > 0:
            raise ValueError(f"radius is {self.radius}; it must be positive")


def look_up(table: LookupTable, game: ControlGame, radius: float, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(bool [B], whether a state is critical; int32 [B], its row) of raw observations [B, ...]."""
    if game.state_code is not None:
        codes = game.state_code(obs)
        row = jnp.clip(jnp.searchsorted(table.codes, codes), 0, len(table.codes) - 1)
        return table.codes[row] == codes, row
    seen = (obs.reshape(len(obs), -1) - table.mean) / table.scale
    # |x - k|^2 as |x|^2 - 2 x k + |k|^2: one matrix product.
    squares = jnp.sum(seen**2, 1)[:, None] - 2 * seen @ table.keys.T + jnp.sum(table.keys**2, 1)[None]
    row = jnp.argmin(squares, axis=1)
    distance = jnp.mean((seen - table.keys[row]) ** 2, axis=1)
    return distance <= radius**2, row


def true_action(table: LookupTable, hit: jax.Array, row: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Equation 1: (the action that is executed [B] or [B, A], bool [B] where it is the suggestion)."""
    replaced = hit & table.suggested[row]
    wide = replaced.reshape(replaced.shape + (1,) * (action.ndim - 1))
    return jnp.where(wide, table.action[row].astype(action.dtype), action), replaced


def language_reward(table: LookupTable, hit: jax.Array, row: jax.Array, action: jax.Array) -> jax.Array:
    """r^LLM(s, a) of equation 2: float32 [B], 0 where the state is not critical or the action was not judged."""
    judged, known = table.judged[row], table.known[row]  # [B, M, ...], [B, M]
    if action.ndim == 1:
        same = (judged == action[:, None]) & known
        return jnp.where(hit, jnp.sum(jnp.where(same, table.rewards[row], 0.0), axis=1), 0.0)
    distance = jnp.where(known, jnp.sum((judged - action[:, None]) ** 2, axis=-1), jnp.inf)
    nearest = jnp.argmin(distance, axis=1)
    reward = jnp.take_along_axis(table.rewards[row], nearest[:, None], axis=1)[:, 0]
    return jnp.where(hit & known.any(axis=1), reward, 0.0)


def guidance(game: ControlGame, config: GuidanceConfig) -> Hooks:
    """Equations 1 and 2 as hooks of PPO, whose `aux` is the table. Metrics: "critical" (share of steps), "told"."""

    def act(table, obs, action):
        hit, row = look_up(table, game, config.radius, obs)
        return true_action(table, hit, row, action)

    def bonus(table, steps, obs_moments):
        del obs_moments
        T, B = steps.reward.shape
        flat = lambda x: x.reshape(T * B, *x.shape[2:])
        hit, row = look_up(table, game, config.radius, flat(steps.obs))
        told = language_reward(table, hit, row, _executed(game, flat(steps.action))).reshape(T, B)
        told = told if config.rewards else jnp.zeros_like(told)
        return config.alpha * told, table, {"critical": jnp.mean(hit), "told": jnp.mean(told)}

    return Hooks(act=act if config.actions else None, bonus=bonus)


def _executed(game: ControlGame, action: jax.Array) -> Any:
    """A continuous action within the environment's bounds, as it was judged."""
    space = game.env.action_space(game.params)
    return action if hasattr(space, "n") else jnp.clip(action, space.low, space.high)
