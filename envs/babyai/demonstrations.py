"""Trajectories of BabyAI-Text that a model is fine-tuned on (LAC, appendices B.2 and C.3).

The paper has two successes and one failure of each mission. Here a flawed walker plays, its episodes are kept by their
ending, and reflections are written by rule (`annotate`). Failures end early, as their last steps teach little.
"""

from __future__ import annotations

import itertools

from envs.babyai import rules
from envs.babyai.transcripts import Transcript, Walker, walk

SUCCESS_STEPS, FAILURE_STEPS = 20, 12  # the episode ends there; as many pairs as the paper has, about 420
_TRAIN, _HELD_OUT = 2 << 30, 3 << 30  # seeds begin here, above those of tasks, corpora and examples
_CHUNK = 8 * len(rules.MISSIONS)


def demonstrations(successes: int, failures: int, seed: int, held_out: bool = False) -> list[Transcript]:
    """Episodes with reflections, successes first, the missions in turn; the same arguments give the same ones.

    Args:
      successes, failures: how many in all.
      seed: below 4096; another one gives other episodes.
      held_out: episodes of which none is in the other set, whatever the seeds.
    """
    endings = [True] * successes + [False] * failures
    wanted = [(rules.MISSIONS[i % len(rules.MISSIONS)], success) for i, success in enumerate(endings)]
    found: dict[tuple[str, bool], list[Transcript]] = {key: [] for key in wanted}
    missing = lambda: any(len(found[key]) < wanted.count(key) for key in found)
    first = (_HELD_OUT if held_out else _TRAIN) + (seed << 18)
    for start in itertools.count(first, _CHUNK):
        if not missing():
            break
        # Every mission has four walkers who shall win and four who shall not.
        aims = [i // len(rules.MISSIONS) % 2 == 0 for i in range(_CHUNK)]
        steps = [SUCCESS_STEPS if aim else FAILURE_STEPS for aim in aims]
        seeds = [start + i for i in range(_CHUNK)]
        made = walk("all", seeds, [Walker()] * _CHUNK, ["Critic"] * _CHUNK, steps)
        for i, (aim, one) in enumerate(zip(aims, made, strict=True)):
            key = rules.MISSIONS[i % len(rules.MISSIONS)], aim
            if one.success == aim and one.history.steps and key in found:
                found[key].append(one)
    rows = {key: iter(made) for key, made in found.items()}
    return [next(rows[key]) for key in wanted]
