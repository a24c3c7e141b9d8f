"""An analyst's prompts for Pong, and the readers of its replies (ULTRA, sections 3.3, 3.4, appendix B).

Three prompts: the critical timeslots of an excerpt with corrected actions, the case analysis of an episode, the reward
of an action. The sentences are ours; the sections, the coordinate tuples and the output formats are the paper's.
Departures:

- An excerpt begins two timeslots before the judged ones, so that the ball's direction is known.
- The case analysis shows the critical timeslots with their verdicts and each point's outcome, not the whole episode
  again; the paper leaves this open. It asks for both successes and failures, won or lost.
- Rewards are given to any action: one that the agent did not take is shown with the consequences of the one it took.
- The rackets' tuples end at row 79; the paper's {73, 80} leaves the 80 rows.
"""

from __future__ import annotations

import numpy as np

from nlrl_jax.envs.pong.frames import RACKET
from nlrl_jax.envs.trajectory_prompts import GameText, analyst_roles
from nlrl_jax.roles.analyst_replies import choice_reader
from nlrl_jax.roles.trajectories import AnalystRoles, ControlEpisode

ACTIONS = ("stay", "move right", "move left")
_WORDS = {"stay": 0, "stay still": 0, "no move": 0, "move right": 1, "right": 1, "move left": 2, "left": 2}

_GAME = """# Background
Pong on a grid of 80 x 80 cells: table tennis seen from above. Two rackets hit a ball back and forth; whoever misses \
it loses the point. Winning a point gives a reward of 1, losing one a reward of -1; every other timeslot gives 0. The \
game is played to {points}.

# Components
A position is a tuple {x1, x2, y1, y2}: the cells in rows x1 to x2 and columns y1 to y2. Each racket is 8 rows long \
and 2 columns wide and moves along the rows only. Ours ranges from {0, 7, 70, 71} to {72, 79, 70, 71}, the \
opponent's from {0, 7, 8, 9} to {72, 79, 8, 9}. The ball covers two rows of one column and moves by the same \
number of rows and columns in each timeslot until it bounces off a racket or off the walls at rows 0 and 79. While its \
y increases, it is coming towards us.

# Actions
Our racket has three actions: "stay", "move right" (subtracts 2 from both of its rows) and "move left" (adds 2 to both).

# Objective of the agent
An agent controls our racket. It should return every ball that the opponent sends and win more points than it loses.

# How to catch the ball
The ball is caught if at least one of its two rows is among the 8 rows of our racket when it passes column 69. For \
example, a ball that arrives as {30, 31, 69, 69} is caught with both rows by our racket anywhere from \
{24, 31, 70, 71} to {30, 37, 70, 71}, and with one row at {23, 30, 70, 71} and {31, 38, 70, 71}.

"""
_IDENTIFY = """\
(i) Find the critical timeslots: those in which the action decides whether the ball will be caught, and so the later \
reward. While the ball is flying towards the opponent, what our racket does hardly matters; such timeslots are not \
critical.
(ii) Go by the movement of the ball: which way and how fast it is flying, which wall it will bounce off, and where and \
when it will reach column 69. Compare this with where our racket is and how many moves it still has time for.
(iii) For each critical timeslot, decide whether the agent's action was appropriate. Moving away from where the ball \
will arrive, or waiting until it is too late to get there, is not. If it was not appropriate, give the corrected \
action: stay, move left or move right."""
_ANALYSE = """\
(i) Analyse the failures: which critical actions led to a lost point and how (for example, the racket went the wrong \
way, set off too late or left a good position), and from which timeslot on.
(ii) Analyse the successes: in which critical timeslots the racket did well, and how such actions should be rewarded."""
_REWARD = """\
(i) The reward is positive if the action helps to catch the ball and negative if it makes that harder. The more \
the action matters, the further from 0 the reward is.
(ii) Work out from the ball's positions in consecutive timeslots where and when it will arrive, and judge by that."""


def roles(points: int = 21) -> AnalystRoles:
    """Pong's side of ULTRA. Observations: top rows of our and their racket, the ball's row and column, its velocities.

    Args:
      points: that win a game.
    """
    return analyst_roles(game_text(points))


def game_text(points: int = 21) -> GameText:
    """Puts Pong into words."""
    return GameText(
        system="You are an expert at games like Pong. Answer in the requested output format.",
        game=_GAME.replace("{points}", "1 point" if points == 1 else f"{points} points"),
        identify=_IDENTIFY,
        analyse=_ANALYSE,
        reward=_REWARD,
        correction="The corrected action is one of stay, move left and move right",
        outcome="how the points ended",
        chunk=40,
        before=2,
        around=(4, 5),
        state=positions,
        action=lambda action: ACTIONS[action],
        read_action=choice_reader(_WORDS),
        events=lambda episode: [f"In timeslot {slot} {_outcome(won)}." for slot, won in point_ends(episode)],
        ending=_ending,
    )


def positions(observation: np.ndarray) -> str:
    """Writes an observation (`env.OBSERVED`) in the paper's tuples: first and last row, first and last column."""
    racket, opponent, row, column = (round(float(x)) for x in observation[:4])
    return (
        f"ball {{{row}, {row + 1}, {column}, {column}}}, our racket {{{racket}, {racket + RACKET - 1}, 70, 71}}, "
        f"opponent's racket {{{opponent}, {opponent + RACKET - 1}, 8, 9}}"
    )


def point_ends(episode: ControlEpisode) -> list[tuple[int, bool]]:
    """Lists (timeslot, whether we won) of every point that was played to its end."""
    return [(int(t), bool(episode.rewards[t] > 0)) for t in np.flatnonzero(episode.rewards)]


def _ending(episode: ControlEpisode) -> str:
    last = len(episode) - 1
    if not episode.terminated:
        return f"The episode was cut off after timeslot {last}, in the middle of a point."
    return f"The episode ends in timeslot {last}: {_outcome(episode.rewards[last] > 0)}."


def _outcome(won: bool) -> str:
    return "we win the point" if won else "we lose the point"
