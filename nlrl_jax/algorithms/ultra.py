"""ULTRA: a language model marks the critical states of a sub-optimal agent, and PPO refines it (algorithm 1).

    findings = analyse(episodes, roles, model, seed)          # on the host: identification, case analysis, rewards
    table = make_table(findings.states, game)                 # arrays
    hooks = guidance(game, GuidanceConfig(alpha=0.5))         # equations 1 and 2, for `ppo.make_update`
    state = base.replace(aux=table)

ULTRA-A replaces actions (equation 1), ULTRA-R adds rewards (equation 2), ULTRA-RA does both.

What the paper leaves open, and our choice:
- "s_t in the table": the same `state_code` where the game has one (Pong: ball, velocity, our racket), else the nearest
  critical state within `radius`, the root mean square over the observation's dimensions after normalisation.
- A suggestion for a continuous action holds in one state, and its table row stands for all states within the radius.
  Torques copied to all of them wreck even perfect advice (the agent's own mean actions, stored as torques and copied,
  cost a Hopper a fifth of its return), so by default the table keeps how far the suggestion lies from the base agent's
  mean action in its state, and `GuidanceConfig.step` of this offset is added to whatever the agent does near it. Rated
  actions are compared by their offsets, too. `advice="absolute"` copies the torques, as the paper does.
- The language model rates actions once, before refinement: the action taken in a critical state and the one suggested
  instead. During refinement another action gets the reward of the nearest rated one (continuous), or none (discrete).
- What the policy learns from a replaced action: as in algorithm 1, the executed action goes into the data, with its
  log-probability under the policy before the update, so that its ratio starts at 1. It is not weighted by the
  probability 1 with which it was executed: that would take nearly all weight from exactly the actions that the policy
  has yet to learn. But then the data hold no comparison with the policy's own action there, V soon expects the
  correction, and the advantage of a suggestion is noise around 0: under exactly this algorithm, Pong's agent plays
  worse without its table than plain PPO (docs/lab). So the normalised advantage of a replaced action is at
  least `GuidanceConfig.floor`, a few deviations: suggestions are also imitated. -inf is exactly algorithm 1.
- The refined agent is evaluated alone, without the table.
- Verdicts of several episodes on the same state are merged: suggestions by vote, rewards by their mean. A verdict that
  the action taken was proper votes for it; one that says nothing usable about the action does not vote.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.algorithms.analyst import CriticalState
from nlrl_jax.algorithms.ppo import Hooks
from nlrl_jax.arrays import flat_steps
from nlrl_jax.config import check, option
from nlrl_jax.roles.trajectories import Action
from nlrl_jax.types import ControlGame


@flax.struct.dataclass
class LookupTable:
    """K critical states as arrays, sorted by code. K is at least 1: an empty table has one row that no state matches.

    codes: int32 [K], or zeros. keys: float32 [K, D], normalised observations. mean, scale: float32 [D], of the
    normalisation. action: [K] or [K, A], the suggestion, and suggested: bool [K], whether there is one.
    judged: [K, M] or [K, M, A], the actions that have a reward; rewards, known: [K, M]. In a relative table `action`
    and `judged` are offsets from the base agent's mean action in the row's state.
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

# observations [N, D] -> the base agent's mean actions [N, A]
MeanAction = Callable[[jax.Array], jax.Array]


def make_table(
    states: Sequence[CriticalState],
    game: ControlGame,
    mean: np.ndarray | None = None,
    scale: np.ndarray | None = None,
    mean_action: MeanAction | None = None,
) -> LookupTable:
    """The lookup table of algorithm 1 as arrays.

    Args:
      mean, scale: [D], of the base agent's observations (`statistics`); only continuous games need them.
      mean_action: of the base agent, for a relative table; None keeps actions as they are.

    Raises:
      ValueError: an action outside the game's action space, or a reward that is not finite.
    """
    space = game.env.observation_space(game.params)
    D = int(np.prod(space.shape))
    mean = np.zeros(D, np.float32) if mean is None else np.asarray(mean, np.float32)
    scale = np.ones(D, np.float32) if scale is None else np.maximum(np.asarray(scale, np.float32), 1e-6)
    kind = game.env.action_space(game.params)
    shape = () if hasattr(kind, "n") else kind.shape
    for state in states:
        _check(state, kind)
    groups = _grouped(states, game)
    M = max([1, *(len(_rewards(group)) for _, group in groups)])
    K = max(len(groups), 1)
    dtype = np.float32 if shape else np.int32
    codes, keys = np.full(K, NOWHERE, np.int32), np.full((K, D), FAR, np.float32)
    action, suggested = np.zeros((K, *shape), dtype), np.zeros(K, bool)
    judged, rewards, is_known = np.zeros((K, M, *shape), dtype), np.zeros((K, M), np.float32), np.zeros((K, M), bool)
    for row, (code, group) in enumerate(groups):
        codes[row] = code
        keys[row] = (group[0].observation.reshape(-1) - mean) / scale
        # A state judged several times goes by majority; without a suggestion a verdict votes for the agent's action.
        verdicts = [(state.verdict.action, state.taken) for state in group if state.verdict.judged]
        if any(better is not None for better, _ in verdicts):
            votes = Counter(agent_action if better is None else better for better, agent_action in verdicts)
            action[row], suggested[row] = votes.most_common(1)[0][0], True
        for m, (rated, reward) in enumerate(_rewards(group).items()):
            judged[row, m], rewards[row, m], is_known[row, m] = rated, reward, True
    if mean_action is not None and groups:
        agent_actions = np.asarray(mean_action(jnp.asarray(np.stack([group[0].observation for _, group in groups]))))
        # From absolute actions to offsets from what the base agent does there.
        action, judged = action - agent_actions, judged - agent_actions[:, None]
    return LookupTable(
        *(jnp.asarray(x) for x in (codes, keys, mean, scale, action, suggested, judged, rewards, is_known))
    )


def _check(state: CriticalState, space: Any) -> None:
    """Raises ValueError for what a table of this action space cannot hold."""
    place = f"episode {state.episode}, timeslot {state.verdict.timeslot}"
    suggested = () if state.verdict.action is None else (state.verdict.action,)
    for action in (state.taken, *suggested, *state.rewards):
        if hasattr(space, "n"):
            right, requirement = (
                isinstance(action, int) and 0 <= action < space.n,
                f"a whole number from 0 to {space.n - 1}",
            )
        else:
            requirement = f"{space.shape[0]} numbers within the action space's bounds"
            numbers = np.asarray(action)
            right = numbers.shape == space.shape and bool(((numbers >= space.low) & (numbers <= space.high)).all())
        if not right:
            raise ValueError(f"{place}: action {action!r} is not one of the game's; it must be {requirement}")
    for action, reward in state.rewards.items():
        if not np.isfinite(reward):
            raise ValueError(f"{place}: the reward of action {action!r} is {reward!r}; it must be a finite number")


def statistics(obs: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation [D] of recorded observations [T, N, D]; of each episode the first `steps` [N] count."""
    counted = np.arange(len(obs))[:, None] < steps
    rows = obs.reshape(*obs.shape[:2], -1)[counted]
    return rows.mean(0), rows.std(0)


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
    """The mean reward of each rated action."""
    by_action: dict[Action, list[float]] = {}
    for state in group:
        for action, reward in state.rewards.items():
            by_action.setdefault(action, []).append(reward)
    return {action: sum(rewards) / len(rewards) for action, rewards in by_action.items()}


@dataclasses.dataclass(frozen=True)
class GuidanceConfig:
    """ULTRA's guidance of the refinement."""

    actions: bool = option(True, "replace actions in critical states (ULTRA-A)")
    rewards: bool = option(True, "add alpha * r^LLM in critical states (ULTRA-R)")
    alpha: float = option(0.5, "weight of the analyst's rewards; the paper: 0.5 for Pong, 0.1 for the robots", least=0)
    radius: float = option(
        0.3, "how close a continuous state must be to a critical one, in standard deviations per dimension", above=0
    )
    advice: str = option(
        "offset",
        "continuous actions: advice as an offset from the agent's own mean action, or absolute (the paper)",
        choices=("offset", "absolute"),
    )
    step: float = option(0.1, "continuous actions: share of the advice's offset that is added", above=0)
    floor: float = option(
        -math.inf, "least normalised advantage of a suggested action; -inf: exactly algorithm 1", below=math.inf,
        infinite=True,
    )  # fmt: skip

    def __post_init__(self):
        check(self)


def look_up(table: LookupTable, game: ControlGame, radius: float, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(bool [B], whether a state is critical; int32 [B], its row) of raw observations [B, ...]."""
    if game.state_code is not None:
        codes = game.state_code(obs)
        # Codes are sorted: a binary search, then a look whether the row is really that code.
        row = jnp.clip(jnp.searchsorted(table.codes, codes), 0, len(table.codes) - 1)
        return table.codes[row] == codes, row
    x = (obs.reshape(len(obs), -1) - table.mean) / table.scale
    # XLA fuses the sum: no [B, K, D] array exists. |x|^2 - 2 x k + |k|^2 would cancel far from the origin.
    row = jnp.argmin(jnp.sum((x[:, None] - table.keys) ** 2, axis=-1), axis=1)
    # Mean squared deviation per dimension, so that `radius` means the same for robots with few and many joints.
    distance = jnp.mean((x - table.keys[row]) ** 2, axis=1)
    return distance <= radius**2, row


def true_action(
    table: LookupTable, hit: jax.Array, row: jax.Array, action: jax.Array, step: float | None = None
) -> tuple[jax.Array, jax.Array]:
    """Equation 1: (the action that is executed [B] or [B, A], bool [B] where it follows a suggestion).

    Args:
      step: share of a relative table's offset that is added to the agent's action; None copies the suggestion.
    """
    replaced = hit & table.suggested[row]
    # [B] or [B, 1], to broadcast over an action's dimensions.
    wide = replaced.reshape(replaced.shape + (1,) * (action.ndim - 1))
    advice = table.action[row].astype(action.dtype)
    return jnp.where(wide, advice if step is None else action + step * advice, action), replaced


def language_reward(table: LookupTable, hit: jax.Array, row: jax.Array, action: jax.Array) -> jax.Array:
    """r^LLM(s, a) of equation 2: float32 [B], 0 where the state is not critical or the action has no rating.

    Args:
      action: [B] or [B, A], as executed; an offset where the table is relative.
    """
    judged, is_known = table.judged[row], table.known[row]  # [B, M, ...], [B, M]
    if action.ndim == 1:
        same = (judged == action[:, None]) & is_known
        return jnp.where(hit, jnp.sum(jnp.where(same, table.rewards[row], 0.0), axis=1), 0.0)
    distance = jnp.where(is_known, jnp.sum((judged - action[:, None]) ** 2, axis=-1), jnp.inf)
    # Continuous actions never repeat: the nearest rated one lends its reward.
    nearest = jnp.argmin(distance, axis=1)
    reward = jnp.take_along_axis(table.rewards[row], nearest[:, None], axis=1)[:, 0]
    return jnp.where(hit & is_known.any(axis=1), reward, 0.0)


def guidance(game: ControlGame, config: GuidanceConfig, mean_action: MeanAction | None = None) -> Hooks:
    """Equations 1 and 2 as hooks of PPO, whose `aux` is the table.

    Args:
      mean_action: of the base agent, where the table is relative; see `make_table`.

    Metrics: "critical" (share of steps in critical states), "language_reward" (mean of r^LLM as added, unweighted).
    """
    step = None if mean_action is None else config.step

    def act(table, obs, action):
        hit, row = look_up(table, game, config.radius, obs)
        return true_action(table, hit, row, action, step)

    def bonus(table, steps, obs_moments):
        del obs_moments
        obs = flat_steps(steps.obs)
        hit, row = look_up(table, game, config.radius, obs)
        executed = _executed(game, flat_steps(steps.action))
        executed = executed if mean_action is None else executed - mean_action(obs)
        reward = language_reward(table, hit, row, executed).reshape(steps.reward.shape)
        reward = reward if config.rewards else jnp.zeros_like(reward)
        return config.alpha * reward, table, {"critical": jnp.mean(hit), "language_reward": jnp.mean(reward)}

    def advantage(advantages, batch):
        return jnp.where(batch["replaced"], jnp.maximum(advantages, config.floor), advantages)

    return Hooks(act=act, bonus=bonus, advantage=advantage) if config.actions else Hooks(bonus=bonus)


def _executed(game: ControlGame, action: jax.Array) -> Any:
    """A continuous action within the environment's bounds, as it was judged."""
    space = game.env.action_space(game.params)
    return action if hasattr(space, "n") else jnp.clip(action, space.low, space.high)
