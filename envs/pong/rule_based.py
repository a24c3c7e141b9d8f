"""A rule-based analyst for Pong that knows no more of the game than its prompts say.

It tells the ball's velocity from its positions in consecutive timeslots, reflects its way from the walls and compares
where and when it will reach our column with where our racket is. A spot counts as reached if both rows of the ball meet
the racket: one is enough, but leaves no margin. How our racket's spot changes the ball's way back, and what the
opponent does, it leaves alone: an action that keeps the racket where both rows meet it is never corrected.

- identify: critical is a timeslot in which the ball comes and either the racket still has way to go with at most
  `SLACK` timeslots to spare, or the ball arrives within `NEAR`. An action is proper if it brings the racket nearer to
  the nearest spot that catches, or keeps it in one.
- analyse: the critical timeslots before each end of a point, the improper ones as what led to a loss.
- reward: 0 while the ball flies away; else the sign says whether the action was proper, the size how little time
  there is to spare; what makes the ball out of reach is -1, and where it is out of reach already nothing is good. Half
  of it where the case analysis names other timeslots only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.envs.pong.frames import LOWEST, OURS, RACKET
from nlrl_jax.envs.pong.prompts import ACTIONS, game_text, point_ends
from nlrl_jax.envs.trajectory_prompts import Excerpt, case_analysis, emphasis, numbered, strategies, verdict_text

SLACK, NEAR = 8, 6  # timeslots
CALM = 16  # timeslots to spare at which an action matters little
_TEXT = game_text()
_ROWS = np.array([0, -2, 2])  # what an action adds to the racket's rows


class Forecast(NamedTuple):
    """Where the ball will reach our column.

    row: its upper row then. left: moves that our racket can make until then, that of this timeslot included.
    """

    row: int
    moves_left: int

    def needed(self, top: int) -> int:
        """Counts the moves from a racket's top row to the nearest place where it meets both rows of the ball."""
        off = max(top - self.row, self.row + 2 - RACKET - top, 0)
        return math.ceil(off / 2)

    def best(self, top: int) -> int:
        """Returns the action that leads to that place."""
        if not self.needed(top):
            return 0
        return 1 if top > self.row else 2


def forecast(excerpt: Excerpt, timeslot: int) -> Forecast | None:
    """Predicts from the positions around `timeslot`; None where the ball does not come or its velocity is unknown."""
    i = timeslot - excerpt.start
    velocity = _velocity(excerpt, i)
    if velocity is None or velocity[1] <= 0:
        return None
    row, column = (round(float(x)) for x in excerpt.observations[i, 2:4])
    if column >= OURS:
        return None  # it is past our racket
    moves_left = math.ceil((OURS - column) / velocity[1])
    return Forecast(_reflect(row + velocity[0] * moves_left), moves_left)


def identify(context: Mapping[str, Any], rng: random.Random) -> str:
    """Writes a verdict on every timeslot of the excerpt."""
    excerpt = _TEXT.excerpt(context)
    return ", ".join(_verdict(excerpt, timeslot) for timeslot in range(context["begin"], context["end"]))


def analyse(context: Mapping[str, Any], rng: random.Random) -> str:
    """Writes a case analysis of the verdicts, point by point."""
    episode, verdicts = context["episode"], context["verdicts"]
    failures, successes, since = [], [], 0
    for end, won in [*point_ends(episode), (len(episode) - 1, None)]:
        here = [verdict for verdict in verdicts if since <= verdict.timeslot <= end]
        since = end + 1
        wrong = [v for v in here if v.action is not None]
        right = [v for v in here if v.action is None and v.judged]
        if wrong:
            actions = "; ".join(
                f"timeslot {v.timeslot} ({ACTIONS[episode.action(v.timeslot)]} where {ACTIONS[v.action]} was right)"
                for v in wrong[:8]
            )
            outcome = "the point was lost" if won is False else "the point was not lost all the same"
            count = len(wrong)
            failures.append(
                f"Up to timeslot {end} the racket acted wrongly {count} times, first in {actions}; {outcome}."
            )
        elif won is False:
            failures.append(f"The point of timeslot {end} was lost though no critical action was found to be wrong.")
        if right:
            slots = numbered(v.timeslot for v in right)
            successes.append(
                f"Up to timeslot {end} it did well {len(right)} times, so in timeslots {slots}: it went to where the "
                "ball would arrive, or stayed there. Reward this the more, the less time was left."
            )
    return case_analysis(verdicts, failures, successes)


def reward(context: Mapping[str, Any], rng: random.Random) -> str:
    """Rewards an action, taken or suggested, by where it brings the racket."""
    excerpt, timeslot, action = _TEXT.excerpt(context), context["timeslot"], context["action"]
    ahead, top = forecast(excerpt, timeslot), _top(excerpt, timeslot)
    if ahead is None:
        return "{reward = 0, analysis: the ball does not come towards us, so the action decides nothing}"
    value, reason = _worth(ahead, top, action)
    value *= emphasis(context["analysis"], timeslot)
    return f"{{reward = {value:.2f}, analysis: {_sight(ahead, top)}; {ACTIONS[action]} {reason}}}"


SCRIPTS = {"identify": identify, "analyse": analyse, "reward": reward, "strategies": strategies}


def _verdict(excerpt: Excerpt, timeslot: int) -> str:
    """Writes the verdict on a timeslot from where the ball will arrive and how far the racket is from there."""
    ahead = forecast(excerpt, timeslot)
    if ahead is None:
        return verdict_text(timeslot, False, "the ball does not come towards us")
    top = _top(excerpt, timeslot)
    needed = ahead.needed(top)
    spare = ahead.moves_left - needed
    if ahead.moves_left > NEAR and (not needed or spare > SLACK):
        return verdict_text(timeslot, False, f"{_sight(ahead, top)}, which leaves time")
    action = excerpt.action(timeslot)
    better = "none" if _is_proper(ahead, top, action) else ACTIONS[ahead.best(top)]
    reason = f"{_sight(ahead, top)}; {ACTIONS[action]} {_worth(ahead, top, action)[1]}"
    return verdict_text(timeslot, True, reason, better)


def _is_proper(ahead: Forecast, top: int, action: int) -> bool:
    return ahead.needed(_after(top, action)) <= max(ahead.needed(top) - 1, 0)


def _worth(ahead: Forecast, top: int, action: int) -> tuple[float, str]:
    """Rates an action: (reward, reason)."""
    needed, later = ahead.needed(top), ahead.needed(_after(top, action))
    proper = _is_proper(ahead, top, action)
    if needed > ahead.moves_left:
        return (-0.25, "goes the right way but too late") if proper else (-1.0, "makes sure that the ball is missed")
    weight = min(max(1 - (ahead.moves_left - needed) / CALM, 0.25), 1.0)
    if proper:
        return weight, "goes to where it arrives" if needed else "keeps the racket where it arrives"
    if later > ahead.moves_left - 1:
        return -1.0, "puts the ball out of reach"
    return -weight, "leaves the place where it arrives" if not needed else "does not bring the racket nearer"


def _sight(ahead: Forecast, top: int) -> str:
    place = f"the ball will arrive at rows {ahead.row} and {ahead.row + 1} in {ahead.moves_left} timeslots"
    return f"{place} and our racket at rows {top} to {top + RACKET - 1} needs {ahead.needed(top)} moves"


def _after(top: int, action: int) -> int:
    return int(np.clip(top + _ROWS[action], 0, 80 - RACKET))


def _top(excerpt: Excerpt, timeslot: int) -> int:
    return round(float(excerpt.state(timeslot)[0]))


def _reflect(row: int) -> int:
    """Folds the row of a ball that flew straight on to `row` back between the walls."""
    row %= 2 * LOWEST  # up and down once
    return min(row, 2 * LOWEST - row)


def _velocity(excerpt: Excerpt, i: int) -> tuple[int, int] | None:
    """Estimates the ball's (rows, columns) a timeslot at observation i: what explains the positions next to it best."""
    rows, columns = np.rint(excerpt.observations[:, 2:4]).astype(int).T
    # Steps (rows, columns) from one position to the next, but for those that lead to a new serve.
    steps = {}
    for j in range(max(i - 2, 0), min(i + 2, len(rows) - 1)):
        if excerpt.rewards[j] == 0:
            steps[j] = rows[j + 1] - rows[j], columns[j + 1] - columns[j]
    # Columns of the steps after and before observation i. A hit shortens one of them, so the longer counts.
    across = [int(steps[j][1]) for j in (i, i - 1) if j in steps and steps[j][1]]
    if not across:
        return None
    columns_a_step = max((step for step in across if step * across[0] > 0), key=abs)
    flight = {}  # the steps before and after, up to where something turned the ball round
    for way in ((i, i + 1), (i - 1, i - 2)):
        for j in way:
            if j not in steps or steps[j][1] * across[0] <= 0:
                break
            flight[j] = steps[j]
    speed = max(abs(int(step[0])) for step in flight.values())  # a step off a wall looks shorter

    def misfit(velocity: int) -> int:
        ahead = abs(_reflect(rows[i] + velocity) - rows[i + 1]) if i in flight else 0
        back = abs(_reflect(rows[i] - velocity) - rows[i - 1]) if i - 1 in flight else 0
        return int(ahead + back)

    return min((speed, -speed), key=misfit), columns_a_step
