"""Demonstrations of Crafter: of both endings, and none in a world of the tasks or of the other set."""

import collections

import envs
from envs.crafter.demonstrations import STEPS, demonstrations
from nlrl_jax.roles.dialogues import verdict

GAME = envs.make_host("crafter")


def test_demonstrations_are_played_end_as_they_say_and_are_judged():
    made = demonstrations(2, 1, 0)
    assert [one.success for one in made] == [True, True, False]
    words = {True: collections.Counter(), False: collections.Counter()}
    for one in made:
        assert 0 < len(one.history.steps) <= STEPS
        words[one.success].update(verdict(step.note) for step in one.history.steps)
        assert all(step.action in GAME.actions for step in one.history.steps)
    share = lambda success: words[success]["GOOD"] / words[success].total()
    assert {"GOOD", "BAD"} <= {*words[True], *words[False]} <= {"GOOD", "BAD", "UNKNOWN"}
    assert share(True) > share(False)
    assert [made[0], made[2]] == envs.demonstrations("crafter", 1, 1, 0)
    starts = lambda made: {one.history.observation for one in made}
    assert not starts(made) & starts(demonstrations(1, 1, 1))
    assert not starts(made) & starts(demonstrations(1, 1, 0, True))
    assert not starts(made) & {start.observation for start in GAME.reset([("", seed) for seed in range(16)])}
