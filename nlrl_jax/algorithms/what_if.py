"""What if the agent had pushed a little differently? An analyst with tools: short searches in the simulator.

    findings = find(game, config, base, trajectories, key, SearchConfig())     # in the place of `analyst.analyse`

From a stored state the agent is played on by its mean action, once as it is and once for every candidate: an offset
added to its mean action for `hold` steps. After `horizon` steps its value function ends the sum. Mean actions and the
robots' simulator know no chance (a game that does gets the same key for all), so the candidates of a state meet the
same luck, and what is left of error is that of V.

What is suggested in a state is no candidate but the direction in which the return rises, from the candidates of this
state and of its neighbours (`directions`): the best candidate is right for one state and wrong next to it. On a Hopper
base agent (300 updates; 3,277 by its mean action) the best of 8 candidates as advice led to 2,608 and less, 0.03 of
torque along the smoothed direction to 3,296, and 0.03 against it to 3,268 (docs/measurements_ultra.md).
A suggestion is asked about once more with the longer horizon `recheck`, and stays where it gains more than `margin`
there. Candidates are rated by their gain in the first search, over the `UNIT` quantile of all such gains, clipped to
+-1.

Nothing of this is in the paper, whose analyst has words alone: tables name it an analyst with tools. Its steps in the
simulator are counted (`counts`), and are not part of a refiner's budget.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.algorithms import ppo
from nlrl_jax.algorithms.analyst import CriticalState, Findings
from nlrl_jax.algorithms.ppo import PPOConfig, PPOState
from nlrl_jax.algorithms.ultra import statistics
from nlrl_jax.config import check, option
from nlrl_jax.roles.trajectories import Verdict
from nlrl_jax.rollouts.control import Trajectories
from nlrl_jax.types import ControlGame

UNIT, OUTLIER = 0.9, 4.0
_ROWS = 4096  # simulations side by side


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """How an analyst with tools searches."""

    what_ifs: int = option(600, "tools: states it asks about", least=1)
    candidates: int = option(12, "tools: offsets of the action that it tries in each", least=1)
    push: float = option(0.3, "tools: deviation of these offsets, in the action's units", above=0)
    hold: int = option(4, "tools: steps for which an offset is kept up", least=1)
    horizon: int = option(60, "tools: steps until the value function ends a search", least=1)
    recheck: int = option(120, "tools: steps of the second search, of the suggestion alone", least=1)
    margin: float = option(0.0, "tools: gain in discounted return above which a suggestion stays", least=0)
    width: float = option(0.3, "tools: distance at which a neighbour's candidates count 0.6, as --radius", above=0)

    def __post_init__(self):
        check(self)
        if self.hold > min(self.horizon, self.recheck):
            raise ValueError(
                f"hold is {self.hold}; it must not exceed horizon ({self.horizon}) and recheck ({self.recheck})"
            )

    def steps(self, states: int) -> int:
        """Of the simulator, for so many states."""
        return states * ((self.candidates + 1) * self.horizon + 2 * self.recheck)


class Answers(NamedTuple):
    """The answers about K states.

    mean: [K, A], the agent's mean action. offsets: [K, M + 1, A], the candidates, of which the first is 0 and the
    second leads to the action taken. values: [K, M + 1], their gain in discounted return over the first. advice: [K,
    A], the offset that is suggested. gain: [K], its gain in the second search.
    """

    mean: np.ndarray
    offsets: np.ndarray
    values: np.ndarray
    advice: np.ndarray
    gain: np.ndarray


def play_on(
    game: ControlGame, config: PPOConfig, base: PPOState, obs: Any, env_state: Any, offset: Any, hold: int, horizon: int
) -> jax.Array:
    """Discounted returns [N] of the agent's mean action plus `offset` [N, A] for `hold` steps, V at the end."""
    agent = ppo.agent_of(game.env, game.params, config)
    mean_action = agent.mean_action(base.params, base.obs_moments)
    step_env = jax.vmap(game.env.step_env, in_axes=(None, 0, 0, None))

    def step(carry, t):
        obs, env_state, over, total, discount = carry
        action = agent.to_env(mean_action(obs) + jnp.where(t < hold, offset, 0.0))
        obs, env_state, reward, ended, _ = step_env(jax.random.key(0), env_state, action, game.params)
        total = total + jnp.where(over, 0.0, discount * reward)
        return (obs, env_state, over | ended, total, discount * config.discount), None

    start = (obs, env_state, jnp.zeros(len(obs), bool), jnp.zeros(len(obs)), jnp.ones(()))
    (obs, _, over, total, discount), _ = jax.lax.scan(step, start, jnp.arange(horizon))
    # V speaks of the rewards that PPO saw, which are divided by the deviation of returns.
    scale = jnp.sqrt(base.return_moments.var + 1e-8) if config.normalize_reward else 1.0
    return total + jnp.where(over, 0.0, discount * scale * agent.value(base.params, base.obs_moments, obs))


def ask(
    game: ControlGame,
    config: PPOConfig,
    base: PPOState,
    obs: Any,
    env_state: Any,
    taken: Any,
    keys: np.ndarray,
    key: jax.Array,
    search: SearchConfig = SearchConfig(),
) -> Answers:
    """Searches from K states: obs [K, D], env_state with leading axis [K].

    Args:
      taken: [K, A], the agent's actions there, which are the first candidates; the others are drawn.
      keys: [K, D], the observations normalised, for distances between states.

    Raises:
      ValueError: the game's actions are discrete, to which nothing can be added.
    """
    agent = ppo.agent_of(game.env, game.params, config)
    if not agent.continuous:
        raise ValueError(f"{game.name} has discrete actions; an analyst with tools adds offsets to continuous ones")
    K, M, A = len(obs), search.candidates, game.env.action_space(game.params).shape[0]
    mean = agent.mean_action(base.params, base.obs_moments)(obs)
    tried = agent.to_env(mean[:, None] + search.push * jax.random.normal(key, (K, M, A))) - mean[:, None]
    tried = tried.at[:, 0].set(agent.to_env(jnp.asarray(taken)) - mean)
    offsets = np.concatenate([np.zeros((K, 1, A), np.float32), np.asarray(tried)], axis=1)
    played = lambda offsets, horizon: _in_parts(game, config, base, obs, env_state, offsets, search.hold, horizon)
    returns = played(offsets, search.horizon)
    values = returns - returns[:, :1]
    rising = directions(keys, offsets[:, 1:], values[:, 1:], search.width)
    steepness = np.linalg.norm(rising, axis=1, keepdims=True)
    advice = search.push * rising / np.maximum(steepness, max(float(np.median(steepness)), 1e-6))
    advice = np.asarray(agent.to_env(mean + jnp.asarray(advice, mean.dtype)) - mean)
    again = played(np.stack([offsets[:, 0], advice], axis=1), search.recheck)
    return Answers(np.asarray(mean), offsets, values, advice, again[:, 1] - again[:, 0])


def directions(keys: np.ndarray, offsets: np.ndarray, values: np.ndarray, width: float) -> np.ndarray:
    """The slope of the values in the offsets at each of K states, from its neighbours' candidates, too: [K, A].

    A weighted least-squares fit of values by a constant, the offsets and their squares. A candidate of a state at
    distance d (root mean square over dimensions) weighs exp(-d^2 / 2 width^2). Values count up to `OUTLIER` times
    their median size: what leads to a fall would drown all else.

    Args:
      keys: [K, D], normalised observations. offsets: [K, M, A]. values: [K, M].
    """
    K, M, A = offsets.shape
    bound = OUTLIER * max(float(np.median(np.abs(values))), 1e-6)
    flat, y = offsets.reshape(K * M, A).astype(np.float64), np.clip(values, -bound, bound).reshape(-1)
    terms = np.concatenate([flat, np.ones((K * M, 1)), flat**2], axis=1)
    ridge = 1e-3 * np.eye(terms.shape[1])

    def slope(key: np.ndarray) -> np.ndarray:
        weight = np.exp(-((keys - key) ** 2).mean(axis=1) / (2 * width**2)).repeat(M)
        weighted = terms * weight[:, None]
        return np.linalg.solve(weighted.T @ terms + ridge, weighted.T @ y)[:A]

    return np.stack([slope(key) for key in keys])


def _in_parts(game, config, base, obs, env_state, offsets, hold, horizon) -> np.ndarray:
    """Returns [K, M] of offsets [K, M, A], a few thousand simulations at a time."""
    K, M, A = offsets.shape
    play = jax.jit(lambda obs, env_state, offset: play_on(game, config, base, obs, env_state, offset, hold, horizon))
    each = min(max(_ROWS // M, 1), K)

    def part(begin: int) -> np.ndarray:
        rows = np.minimum(np.arange(begin, begin + each), K - 1)  # the last part is as large as the others
        wide = lambda x: jnp.repeat(jnp.asarray(x)[rows], M, axis=0)
        out = play(wide(obs), jax.tree.map(wide, env_state), jnp.asarray(offsets[rows].reshape(each * M, A)))
        return np.asarray(out).reshape(each, M)

    return np.concatenate([part(begin) for begin in range(0, K, each)])[:K]


def find(
    game: ControlGame,
    config: PPOConfig,
    base: PPOState,
    trajectories: Trajectories,
    key: jax.Array,
    search: SearchConfig = SearchConfig(),
    slots: Sequence[tuple[int, int]] | None = None,
) -> Findings:
    """What an analyst with tools finds in the agent's episodes.

    Critical are the states where the action matters most (the half in which candidates differ more), and those with a
    suggestion. The case analyses say in words what was found.

    Args:
      slots: (episode, timeslot) of the states that are critical, where others chose them (MASK-R); at most `what_ifs`
        of them are asked about, drawn at random, as they are of all timeslots otherwise.
    """
    key_slots, key_ask = jax.random.split(key)
    steps = np.asarray(trajectories.steps)
    every = slots if slots is not None else [(n, t) for n, T in enumerate(steps) for t in range(T)]
    number = min(search.what_ifs, len(every))
    drawn = np.sort(np.asarray(jax.random.permutation(key_slots, len(every)))[:number])
    if not number:
        return Findings(
            [], ["No state was asked about."] * len(steps), {"tools/what-ifs": 0, "tools/simulated steps": 0}
        )
    episode, timeslot = np.array([every[i] for i in drawn]).T
    obs, env_state = jax.tree.map(lambda x: x[timeslot, episode], (trajectories.obs, trajectories.env_state))
    taken = np.asarray(trajectories.action)[timeslot, episode]
    center, scale = statistics(np.asarray(trajectories.obs), steps)
    keys = (np.asarray(obs).reshape(number, -1) - center) / np.maximum(scale, 1e-6)
    answers = ask(game, config, base, obs, env_state, taken, keys, key_ask, search)
    spread = answers.values.std(axis=1)
    suggested = answers.gain > search.margin
    critical = suggested | (spread >= np.median(spread)) if slots is None else np.ones(number, bool)
    unit = max(float(np.quantile(np.abs(answers.values[:, 1:]), UNIT)), 1e-6)
    space, states = game.env.action_space(game.params), []
    action = lambda numbers: tuple(float(x) for x in np.clip(numbers, space.low, space.high))
    for k in np.flatnonzero(critical):
        worth = {
            action(answers.mean[k] + offset): float(np.clip(value / unit, -1, 1))
            for m, (offset, value) in enumerate(zip(answers.offsets[k], answers.values[k]))
            if m != 1  # the action taken, below
        }
        better = action(answers.mean[k] + answers.advice[k]) if suggested[k] else None
        why = _why(answers.advice[k], float(answers.gain[k]), float(spread[k]), search)
        verdict = Verdict(int(timeslot[k]), True, better, why, judged=better is not None)
        did = action(taken[k])
        worth[did] = float(np.clip(answers.values[k, 1] / unit, -1, 1))
        states.append(CriticalState(int(episode[k]), verdict, np.asarray(obs[k]), did, worth, {}))
    counts = {
        "identify/timeslots": int(steps.sum()),
        "identify/critical": len(states),
        "identify/suggestions": int(suggested.sum()),
        "tools/what-ifs": number,
        "tools/simulated steps": search.steps(number),
    }
    return Findings(states, [_case(n, states) for n in range(len(steps))], counts)


def _why(offset: np.ndarray, gain: float, spread: float, search: SearchConfig) -> str:
    pushed = ", ".join(f"{x:+.2f}" for x in offset)
    return (
        f"what if ({pushed}) were added to the mean action for {search.hold} timeslots? In the simulator the "
        f"discounted return changes by {gain:+.2f} (the value function after {search.recheck} timeslots); over "
        f"{search.candidates} other offsets it varies by {spread:.2f}"
    )


def _case(number: int, states: Sequence[CriticalState]) -> str:
    """A case analysis of one episode."""
    here = [state for state in states if state.episode == number]
    better = [state.verdict.timeslot for state in here if state.verdict.action is not None]
    text = f"The simulator was asked about {len(here)} critical timeslots of episode {number}."
    found = f" In timeslots {', '.join(map(str, better))} another action was better." if better else ""
    return text + (found or " No other action was clearly better.")
