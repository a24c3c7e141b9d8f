"""Walkers of mixed quality, and what is said about their steps."""

import pytest

from nlrl_jax.envs.babyai.corpus import corpus
from nlrl_jax.envs.babyai.host import examples, host_game
from nlrl_jax.envs.babyai.transcripts import EXPERT, KINDS, Walker, walk
from nlrl_jax.roles.dialogues import BAD, GOOD, THINK, UNKNOWN, verdict


@pytest.fixture(scope="module")
def experts():
    return walk("all", range(12), [EXPERT] * 12, ["Critic"] * 12, [40] * 12)


def test_an_expert_succeeds_and_makes_no_bad_step(experts):
    assert all(one.success for one in experts)
    words = [verdict(step.note) for one in experts for step in one.history.steps]
    assert BAD not in words and words.count(GOOD) > words.count(UNKNOWN) > 0
    assert all(verdict(one.history.steps[-1].note) == GOOD for one in experts)


def test_the_same_seeds_give_the_same_episodes_and_a_walker_makes_mistakes(experts):
    again = walk("all", range(12), [EXPERT] * 12, ["Critic"] * 12, [40] * 12)
    assert again == experts
    clumsy = walk("all", range(12), [Walker()] * 12, ["Critic"] * 12, [12] * 12)
    words = [verdict(step.note) for one in clumsy for step in one.history.steps]
    assert BAD in words and sum(one.success for one in clumsy) < 12
    assert max(len(one.history.steps) for one in clumsy) == 12


def test_kinds_of_notes():
    made = {kind: walk("pick up", [5], [EXPERT], [kind], [40])[0] for kind in KINDS}
    notes = {kind: [step.note for step in one.history.steps] for kind, one in made.items()}
    assert notes[""] == notes["Value"] == [""] * len(notes[""])
    assert notes["Reward"] == ["0"] * (len(notes["Reward"]) - 1) + ["1"]
    values = made["Value"].values
    assert len(values) == len(notes["Value"]) + 1 and values[-1].endswith("The value is 2/2.")
    assert made["Thought"].history.note and "I want to" in notes["Thought"][0]
    assert any(step.action.startswith(THINK) for step in made["Think"].history.steps)
    actions = [[s.action for s in one.history.steps if not s.action.startswith(THINK)] for one in made.values()]
    assert all(row == actions[0] for row in actions)
    with pytest.raises(ValueError, match="'Poem'"):
        walk("go to", [0], [EXPERT], ["Poem"], [5])


def test_a_step_that_changes_nothing_is_never_good():
    made = walk("all", range(16), [Walker(random=1.0)] * 16, ["Critic"] * 16, [12] * 16)
    notes = [step.note for one in made for step in one.history.steps]
    idle = [verdict(note) for note in notes if " nothing." in note or "blocked" in note]
    assert len(idle) > 50 and GOOD not in idle and idle.count(BAD) > 0.7 * len(idle)


def test_the_corpus_is_the_same_for_the_same_seed_and_holds_whole_transcripts():
    first, again = (list(corpus(6, 9)) for _ in range(2))
    assert [text for _, text in first] == [text for _, text in again]
    for chat, text in first:
        assert chat.messages[0]["content"] in {kind or "Act" for kind in KINDS}
        assert text.startswith("Goal of the agent: ") and "\nAction: " in text


def test_examples_are_successes_with_notes_of_the_kind():
    one, other = examples("Critic", 2)
    assert verdict(one.last_note) == GOOD and one.goal != other.goal
    assert examples("Value", 1)[0].last_note == ""
    assert host_game(max_steps=7).max_steps == 7
