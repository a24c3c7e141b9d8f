"""Trajectories of BabyAI-Text that a model is fine-tuned on (LAC, appendices B.2 and C.3).

The paper has two successes and one failure of each mission, 418 (input, output) pairs in all. Here a flawed walker
plays, its episodes are kept by their ending, and reflections are written by rule (`annotate`). All end after at most 15
steps, which makes about as many pairs.
"""

from __future__ import annotations

import itertools
from collections import Counter

from nlrl_jax.envs.babyai import rules
from nlrl_jax.envs.babyai.transcripts import NotedEpisode, Walker, walk

STEPS = 15
_TRAIN, _HELD_OUT = 5 << 29, 3 << 30  # seeds begin here, above those of tasks, corpora, examples and benchmarks
_CHUNK = 8 * len(rules.MISSIONS)


def demonstrations(successes: int, failures: int, seed: int, held_out: bool = False) -> list[NotedEpisode]:
    """Makes episodes with reflections, successes first, the missions in turn; the same arguments give the same ones.

    Args:
      successes, failures: how many in all.
      seed: below 2048; another one gives other episodes.
      held_out: episodes of which none is in the other set, whatever the seeds.
    """
    endings = [True] * successes + [False] * failures
    order = [(rules.MISSIONS[i % len(rules.MISSIONS)], success) for i, success in enumerate(endings)]
    by_ending: dict[tuple[str, bool], list[NotedEpisode]] = {key: [] for key in order}
    needed = Counter(order)
    first = (_HELD_OUT if held_out else _TRAIN) + (seed << 18)
    for start in itertools.count(first, _CHUNK):
        if all(len(by_ending[key]) >= n for key, n in needed.items()):
            break
        episodes = walk("all", range(start, start + _CHUNK), [Walker()] * _CHUNK, ["Critic"] * _CHUNK, [STEPS] * _CHUNK)
        for mission, episode in zip(itertools.cycle(rules.MISSIONS), episodes, strict=False):
            key = mission, episode.success
            if episode.history.steps and key in by_ending:
                by_ending[key].append(episode)
    rows = {key: iter(episodes) for key, episodes in by_ending.items()}
    return [next(rows[key]) for key in order]
