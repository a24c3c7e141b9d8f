"""Trajectories of our own ALFWorld games that a model is fine-tuned on (LAC, appendices B.2 and C.3).

The paper has two successes and one failure of each kind of task, 485 (input, output) pairs in all. Here a flawed walker
plays in the rooms for training, and its episodes are kept by their ending. Successes and failures have at most 16
steps, which makes about as many pairs.
"""

from __future__ import annotations

import itertools

from envs.alfworld import games
from envs.alfworld.transcripts import Transcript, Walker, walk

STEPS = 16
_TRAIN, _HELD_OUT = 1 << 40, 3 << 40  # seeds begin here, above those of corpora and examples


def demonstrations(successes: int, failures: int, seed: int, held_out: bool = False) -> list[Transcript]:
    """Episodes with reflections, successes first, the kinds of tasks in turn; the same arguments give the same ones.

    Args:
      successes, failures: how many in all.
      seed: another one gives other episodes.
      held_out: episodes of which none is in the other set, whatever the seeds.
    """
    endings = [True] * successes + [False] * failures
    order = [(games.KINDS[i % len(games.KINDS)], success) for i, success in enumerate(endings)]
    first = (_HELD_OUT if held_out else _TRAIN) + (seed << 20)

    def episodes(task: str, success: bool):
        made = (walk(task, start, Walker(), "Critic", STEPS) for start in itertools.count(first))
        return (one for one in made if one.success == success)

    streams = {key: episodes(*key) for key in set(order)}
    return [next(streams[key]) for key in order]
