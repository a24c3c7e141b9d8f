"""Demonstrations of WebShop: they end as they say, their notes are true, and none is a task."""

import envs
from envs.webshop import catalogue
from envs.webshop.demonstrations import demonstrations
from nlrl_jax.roles.dialogues import verdict

GAME = envs.make_host("webshop")


def replay(history):
    """The last outcome of the history's actions in the game."""
    own = catalogue.load("")
    (goal,) = (goal for goal in own.demonstrations if goal.instruction == history.goal)
    (start,) = GAME.reset([("", 0)])
    state = type(start.state)(goal)
    for step in history.steps:
        (outcome,) = GAME.step([state], [step.action])
        assert outcome.observation == step.observation and outcome.valid
        state = outcome.state
    return outcome


def test_demonstrations_end_as_they_say_and_are_judged():
    made = demonstrations(8, 4, 0)
    assert [one.success for one in made] == [True] * 8 + [False] * 4
    words = set()
    for one in made:
        last = replay(one.history)
        assert last.done and last.success == one.success
        verdicts = [verdict(step.note) for step in one.history.steps]
        assert verdicts[-1] == ("GOOD" if one.success else "BAD")
        assert not one.history.note and len(verdicts) <= 15
        words |= set(verdicts)
    assert words == {"GOOD", "BAD", "UNKNOWN"}
    assert made == demonstrations(8, 4, 0) == envs.demonstrations("webshop", 8, 4, 0) != demonstrations(8, 4, 1)


def test_held_out_instructions_are_apart_and_none_is_a_task():
    goals = lambda *args: {one.history.goal for one in demonstrations(*args)}
    learned, held_out = goals(12, 6, 0), goals(12, 6, 1, True)
    tasks = {goal.instruction for goal in catalogue.load("").tasks}
    assert not learned & held_out and not (learned | held_out) & tasks


def test_examples_have_the_notes_that_a_method_writes():
    for label, shown in {"": "", "Value": "", "Critic": "This step is GOOD.", "Reward": "1", "Thought": "done"}.items():
        first, second = GAME.examples(label, 2)
        assert first.goal != second.goal and replay(first).success
        assert shown in first.steps[-1].note and bool(first.steps[0].note) == bool(shown)
