"""Episodes of text games on the host: B of them in lockstep, every decision one call for all that still run.

A decision rule is `(histories, step) -> decisions` with one action per history; it may also add a note after the
last observation (a reflection) and think aloud. Each step is reported as it is made, so that a killed run repeats it
without calling a language model again.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.roles.dialogues import THINK_REPLY, History, Step
from nlrl_jax.types import MOST_REWARD, EpisodeFault, HostGame, Outcome


class StepDecisions(NamedTuple):
    """What a decision rule returns for B histories: JSON-able, as it is reported and repeated.

    actions: B texts.
    notes: B texts after the last observations; "" keeps what is there.
    thoughts: B lists of thoughts that came before the action; each becomes a step of the history.
    thinking: B records for the report.
    problems: faults of the model's replies, as in {"world model/never ended": 2}. calls: {role: calls}.
    """

    actions: list[str]
    notes: list[str]
    thoughts: list[list[str]]
    thinking: list[dict[str, Any]]
    problems: Counter[str] = Counter()
    calls: Counter[str] = Counter()


@dataclasses.dataclass(frozen=True)
class Episode:
    """An episode that was played.

    Attributes:
      task: (kind, seed). history: the last observation is the history's last.
      success: won. reward: the sum of its rewards. steps: actions in the game, thoughts not counted; invalid: those of
        them that could not be carried out.
      optimal: minimum number of steps, -1 where the game does not say.
      thinking: a record for each step. boards: before each step, and the last one; empty without pictures.
      error: why the game broke off; empty where it did not.
      rewards, valid: of each step, its reward and whether its action could be carried out.
    """

    task: tuple[str, int]
    history: History
    success: bool
    reward: float
    steps: int
    optimal: int
    thinking: tuple[dict[str, Any], ...]
    boards: tuple[str, ...]
    invalid: int = 0
    error: str = ""
    rewards: tuple[float, ...] = ()
    valid: tuple[bool, ...] = ()


def number(reward: Any, game: str, task: Sequence[Any], t: int) -> float:
    """The reward of step t, counted from 0. Raises ValueError: it is nan, infinite or beyond `MOST_REWARD`."""
    if not abs(reward) <= MOST_REWARD:
        raise ValueError(
            f"{game}: step {t + 1} of the task {tuple(task)} paid the reward {float(reward)}; it must be finite, and "
            f"at most {MOST_REWARD:g}"
        )
    return float(reward)


def _closed(game: HostGame, outcome: Outcome) -> Outcome:
    """The outcome of an episode that is cut off, with what the game pays at an end of its own."""
    try:
        return outcome._replace(reward=outcome.reward + game.closing_reward(outcome.state))
    except EpisodeFault as error:
        return outcome._replace(error=str(error))


def play(
    game: HostGame,
    decide: Callable[[Sequence[History], int], StepDecisions],
    tasks: Sequence[tuple[str, int]],
    done_before: Sequence[StepDecisions] = (),
    report: Callable[[int, StepDecisions, int], None] = lambda step, move, running: None,
    rule: Callable[[History, Outcome], Outcome] = lambda history, outcome: outcome,
    pictured: int | None = None,
) -> list[Episode]:
    """One episode per task, in lockstep.

    Args:
      decide: (histories of the episodes that still run, number of the step from 0) -> decisions.
      done_before: moves of an earlier, interrupted call with the same arguments; they are repeated.
      report: called after each new step with its number, the move and how many episodes still run.
      rule: (history before the step, the game's outcome) -> the outcome that counts, e.g. one that ends the episode.
      pictured: how many episodes, from the first on, keep boards, each of which the game draws by itself; None: all.

    Raises:
      ValueError: `done_before` belongs to other tasks; a reward that cannot be summed (`number`).
    """
    starts = game.reset(tasks)
    states = [start.state for start in starts]
    histories = [History.begin(start, task) for start, task in zip(starts, tasks, strict=True)]
    B = len(starts)
    optimal = [-1 if game.optimal is None or (n := game.optimal(state)) is None else n for state in states]
    # Drawing can take longer than playing: only the first `pictured` episodes keep their boards.
    drawn = [game.board is not None and (pictured is None or i < pictured) for i in range(B)]
    boards = [[game.board(state)] if draw else [] for state, draw in zip(states, drawn)]
    thinking: list[list[dict[str, Any]]] = [[] for _ in range(B)]
    rewards: list[list[float]] = [[] for _ in range(B)]
    valid: list[list[bool]] = [[] for _ in range(B)]
    errors = [""] * B
    success, running = np.zeros(B, bool), np.ones(B, bool)
    for t in range(game.max_steps):
        live = np.flatnonzero(running)
        if not len(live):
            break
        # 1. Decisions: those of the interrupted run first, without calling a model.
        repeated = t < len(done_before)
        move = done_before[t] if repeated else decide([histories[i] for i in live], t)
        if len(move.actions) != len(live):
            raise ValueError(
                f"step {t} has {len(move.actions)} moves for {len(live)} episodes: they are of another run"
            )
        try:
            # 2. One step of all games that still run.
            outcomes = game.step([states[i] for i in live], move.actions)
        except ValueError as error:
            raise ValueError(f"{error} (step {t + 1} of {len(live)} episode{'s' * (len(live) != 1)})") from error
        for k, i in enumerate(live):
            # 3. The histories grow: note on the last step, thoughts, then the action and what it led to.
            outcome, history = rule(histories[i], outcomes[k]), histories[i]
            # What the game pays at an end of its own is paid where the episode is cut off, too.
            is_cut = not outcomes[k].done and (outcome.done or t + 1 == game.max_steps)
            if game.closing_reward and is_cut and not outcome.error:
                outcome = _closed(game, outcome)
            history = history.noted(move.notes[k]) if move.notes[k] else history
            # Thoughts are steps of the history alone: the game does not see them.
            for thought in move.thoughts[k]:
                history = history.then(Step(thought, THINK_REPLY))
            states[i] = outcome.state
            histories[i] = history.then(Step(move.actions[k], outcome.observation))
            thinking[i].append(move.thinking[k])
            boards[i] += [game.board(outcome.state)] if drawn[i] else []
            rewards[i].append(number(outcome.reward, game.name, tasks[i][:2], t))
            valid[i].append(outcome.valid)
            success[i], running[i], errors[i] = outcome.success, not outcome.done, outcome.error
        if not repeated:
            report(t, move, int(running.sum()))
    return [
        Episode(
            tuple(tasks[i]), histories[i], bool(success[i]), float(sum(rewards[i])), len(thinking[i]), int(optimal[i]),
            tuple(thinking[i]), tuple(boards[i]), valid[i].count(False), errors[i], tuple(rewards[i]), tuple(valid[i]),
        )
        for i in range(B)
    ]  # fmt: skip
