"""Episodes of text games on the host: B of them in lockstep, every decision one call for all that still run.

A decision rule is `(histories, step) -> decisions` with one action per history; it may also note something behind the
last observation (a reflection). Each step is reported as it is made, so that a killed run can repeat it without asking
a language model again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from nlrl_jax.roles.dialogues import History, Step
from nlrl_jax.types import TextGame


class Start(NamedTuple):
    """The beginning of an episode: the game's own state, the goal in words, the first observation in words."""

    state: Any
    goal: str
    observation: str


class Outcome(NamedTuple):
    """What an action led to.

    state: the next one. observation: in words. reward: of this step. done: the episode is over. success: it is won.
    """

    state: Any
    observation: str
    reward: float = 0.0
    done: bool = False
    success: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class HostGame:
    """A game of one player that is played by text.

    Attributes:
      name: e.g. "babyai".
      rules: the game and its actions in words.
      actions: all there are; empty where any text is one.
      max_steps: horizon; a longer episode is lost.
      reset: seeds -> a start each. The same seed gives the same episode.
      step: (states, actions) -> an outcome each. An action that cannot be carried out is no error: the observation
        says so, or shows that nothing has changed.
      board: state -> the world as a person would draw it; None where there is no picture.
      optimal: state -> minimum number of actions to the goal, for measurements; None where it is not known.
    """

    name: str
    rules: str
    actions: tuple[str, ...]
    max_steps: int
    reset: Callable[[Sequence[int]], list[Start]]
    step: Callable[[Sequence[Any], Sequence[str]], list[Outcome]]
    board: Callable[[Any], str] | None = None
    optimal: Callable[[Any], int] | None = None


class Decisions(Protocol):
    """What a decision rule returns for B histories.

    Attributes:
      actions: B texts.
      histories: the B histories that it was given, possibly with steps of thought and a note behind the last
        observation.
      thinking: B JSON-able records for the report.
    """

    actions: list[str]
    histories: list[History]
    thinking: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Episode:
    """An episode that was played.

    Attributes:
      seed, history: the last observation is the history's last.
      success: won. reward: the sum of its rewards. steps: actions in the game, thoughts not counted.
      optimal: minimum number of steps, -1 where the game does not say.
      thinking: a record for each step. boards: before each step, and the last one; empty without pictures.
    """

    seed: int
    history: History
    success: bool
    reward: float
    steps: int
    optimal: int
    thinking: tuple[dict[str, Any], ...]
    boards: tuple[str, ...]


class Move(NamedTuple):
    """One step of all running episodes, as it is reported and repeated: actions, histories and thinking of each."""

    actions: list[str]
    histories: list[History]
    thinking: list[dict[str, Any]]


def play(
    game: HostGame,
    decide: Callable[[Sequence[History], int], Decisions],
    seeds: Sequence[int],
    done_before: Sequence[Move] = (),
    report: Callable[[int, Move, int], None] = lambda step, move, running: None,
) -> list[Episode]:
    """One episode per seed, in lockstep.

    Args:
      decide: (histories of the episodes that still run, number of the step from 0) -> decisions.
      done_before: moves of an earlier, interrupted call with the same arguments; they are repeated.
      report: called after each new step with its number, the move and how many episodes still run.
    """
    starts = game.reset(seeds)
    states = [start.state for start in starts]
    histories = [History(start.goal, start.observation) for start in starts]
    B = len(starts)
    optimal = [game.optimal(state) if game.optimal else -1 for state in states]
    boards = [[game.board(state)] if game.board else [] for state in states]
    thinking: list[list[dict[str, Any]]] = [[] for _ in range(B)]
    reward, success, running = np.zeros(B), np.zeros(B, bool), np.ones(B, bool)
    for t in range(game.max_steps):
        live = np.flatnonzero(running)
        if not len(live):
            break
        repeated = t < len(done_before)
        move = done_before[t] if repeated else decide([histories[i] for i in live], t)
        move = Move(list(move.actions), list(move.histories), list(move.thinking))
        outcomes = game.step([states[i] for i in live], move.actions)
        for k, i in enumerate(live):
            outcome = outcomes[k]
            states[i] = outcome.state
            histories[i] = move.histories[k].then(Step(move.actions[k], outcome.observation))
            thinking[i].append(move.thinking[k])
            boards[i] += [game.board(outcome.state)] if game.board else []
            reward[i] += outcome.reward
            success[i], running[i] = outcome.success, not outcome.done
        if not repeated:
            report(t, move, int(running.sum()))
    return [
        Episode(
            int(seeds[i]), histories[i], bool(success[i]), float(reward[i]), len(thinking[i]), int(optimal[i]),
            tuple(thinking[i]), tuple(boards[i]),
        )
        for i in range(B)
    ]  # fmt: skip


def of_text_game(
    game: TextGame,
    texts: Callable[[Any], list[tuple[str, str]]] | None = None,
    optimal: Callable[[Any], int] | None = None,
    max_steps: int = 0,
    nothing: str = "Nothing happens.",
) -> HostGame:
    """A text game of the device, played on the host.

    Args:
      texts: states with a leading axis -> (goal, observation) of each; by default the rules and the game's observation.
      optimal: one state -> minimum number of actions.
      max_steps: horizon; 0 is the game's own.
      nothing: stands before the observation after an action that the game does not know.
    """
    env, params = game.env, game.params
    words = {action.lower(): i for i, action in enumerate(game.actions)}
    reset = jax.jit(jax.vmap(lambda key: env.reset_env(key, params)[1]))
    step = jax.jit(jax.vmap(lambda key, state, action: env.step_env(key, state, action, params)[1:4]))
    won = jax.jit(jax.vmap(game.success)) if game.success else None
    fields = jax.jit(jax.vmap(game.fields))

    def rows(states, n: int) -> list[Any]:
        return [jax.tree.map(lambda leaf, i=i: leaf[i], states) for i in range(n)]

    def render(template, states) -> list[str]:
        values = jax.device_get(fields(states))
        return [template.render(row) for row in rows(values, len(jax.tree.leaves(states)[0]))]

    texts = texts or (lambda states: [(game.rules, text) for text in render(game.observation, states)])

    def padded(trees: Sequence[Any]):
        """Stacked to a power of two rows, so that few programs are compiled."""
        size = 1 << max(0, len(trees) - 1).bit_length()
        return jax.tree.map(lambda *leaves: np.stack(leaves), *trees, *[trees[-1]] * (size - len(trees)))

    def start(seeds: Sequence[int]) -> list[Start]:
        states = jax.device_get(reset(jax.vmap(jax.random.key)(padded([np.uint32(seed) for seed in seeds]))))
        pairs = zip(seeds, rows(states, len(seeds)), texts(states), strict=False)
        return [Start((seed, state), *text) for seed, state, text in pairs]

    def advance(states: Sequence[Any], actions: Sequence[str]) -> list[Outcome]:
        ids = [words.get(action.lower(), -1) for action in actions]
        before = padded([state for _, state in states])
        seeds = padded([np.uint32(seed) for seed, _ in states])
        keys = jax.vmap(lambda seed, time: jax.random.fold_in(jax.random.key(seed), time))(seeds, before.time)
        after, reward, terminated = jax.device_get(step(keys, before, padded([np.int32(max(i, 0)) for i in ids])))
        success = jax.device_get(won(after)) if won else terminated & (reward > 0)
        old, new, outcomes = texts(before) if min(ids) < 0 else [], texts(after), []
        for i, (action, state) in enumerate(zip(ids, rows(after, len(ids)))):
            if action < 0:
                outcomes.append(Outcome(states[i], f"{nothing} {old[i][1]}"))
            else:
                ended = bool(terminated[i]), bool(success[i])
                outcomes.append(Outcome((states[i][0], state), new[i][1], float(reward[i]), *ended))
        return outcomes

    return HostGame(
        name=game.name,
        rules=game.rules,
        actions=game.actions,
        max_steps=max_steps or int(params.max_steps_in_episode),
        reset=start,
        step=advance,
        board=lambda state: render(game.board, jax.tree.map(lambda leaf: np.asarray(leaf)[None], state[1]))[0],
        optimal=(lambda state: optimal(state[1])) if optimal else None,
    )
