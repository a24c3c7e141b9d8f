"""Trajectories for fine-tuning: how many, how they end, and that none is in two sets."""

from collections import Counter

from nlrl_jax.envs.babyai.demonstrations import STEPS, demonstrations
from nlrl_jax.roles.dialogues import BAD, GOOD, UNKNOWN, verdict


def test_counts_endings_and_notes():
    made = demonstrations(8, 4, seed=0)
    assert [one.success for one in made] == [True] * 8 + [False] * 4
    first_words = [one.history.goal.split()[0] for one in made]
    assert first_words[:6] == ["go", "pick", "go", "pick", "put", "open"]  # the missions in turn
    assert Counter(first_words) == {"go": 4, "pick": 4, "put": 2, "open": 2}
    lengths = [len(one.history.steps) for one in made]
    assert 0 < min(lengths) and max(lengths[:8]) <= STEPS and set(lengths[8:]) == {STEPS}
    words = Counter(verdict(step.note) for one in made for step in one.history.steps)
    assert set(words) == {GOOD, BAD, UNKNOWN} and min(words.values()) > 5
    assert made == demonstrations(8, 4, seed=0)
    assert demonstrations(6, 0, seed=0) == made[:6]


def test_sets_share_no_episode():
    shown = lambda made: {(one.history.goal, one.history.observation) for one in made}
    sets = [shown(demonstrations(3, 3, *which)) for which in ((0, False), (1, False), (0, True), (1, True))]
    assert all(len(one) == 6 for one in sets) and len(set.union(*sets)) == 24
