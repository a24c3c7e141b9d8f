"""Prompts without a plan: what the model reads, and what becomes of replies that are no action."""

import dataclasses

import pytest

from nlrl_jax.algorithms.lac import LACConfig
from nlrl_jax.algorithms.planners.direct import FORM
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.roles.dialogues import History, Step
from nlrl_jax.run.host_games.prompts import PromptConfig, dialogue_of
from nlrl_jax.types import HostGame, Reply

ACTIONS = ("noop", "move west", "do")
EXAMPLE = History("live", "an example", (Step("do", "a tree"),))
GAME = HostGame(
    "woods", "You are in the woods.", ACTIONS, 9, ("",), None, None, examples=lambda label, n: [EXAMPLE] * n, history=4
)
HISTORIES = [History("live", "a tree"), History("live", "a cow", (Step("do", "grass"),))]


@dataclasses.dataclass
class Writer:
    """Writes one reply per role."""

    policy: str
    note: str = ""
    seen: list = dataclasses.field(default_factory=list)
    can_score = False

    def complete(self, chats, sampling, role, seed=0, stop=()):
        self.seen += [(role, "\n".join(message["content"] for message in chat.messages)) for chat in chats]
        return [Reply(f" {self.policy if role == 'policy' else self.note}") for _ in chats]


def decide(name, reply, note="", examples="auto"):
    model, method = Writer(reply, note), METHODS[name]
    dialogue = dialogue_of(method, GAME, PromptConfig(examples=examples), "some_model", None, 0)
    return method.decide(model, dialogue, HISTORIES, ACTIONS, LACConfig(), 0), model


@pytest.mark.parametrize(
    "name, reply, action, problems",
    [
        ("naive", "move west", "move west", {}),
        ("naive", "Do it", "do", {}),
        ("naive", "I think", "I think", {"policy/no action": 2}),
        ("naive", "w" * 99, "w" * 60, {"policy/no action": 2}),
        ("naive", "", "nothing", {"policy/empty": 2}),
        ("robust_naive", "<action>Move West</action>", "move west", {}),
        ("robust_naive", "I do: <action> do </action>.", "do", {}),
        ("robust_naive", "move west", "nothing", {"policy/no tags": 2}),
        ("robust_naive", "<action>fly</action>", "nothing", {"policy/no action": 2}),
        ("few_shot", "do", "do", {}),
    ],
)
def test_replies(name, reply, action, problems):
    made, _ = decide(name, reply)
    assert made.actions == [action] * 2 and +made.problems == problems and made.calls == {"policy": 2}
    assert made.notes == ["", ""]


@pytest.mark.parametrize("name", ["cot", "robust_cot"])
def test_a_thought_stands_before_the_action_and_stays(name):
    made, model = decide(name, "<action>do</action>" if "robust" in name else "do", "the tree has wood")
    assert made.actions == ["do"] * 2 and made.notes == ["the tree has wood"] * 2
    assert model.seen[-1][1].endswith("Observation: grass\nThought: the tree has wood\nAction:")


def test_what_each_reads():
    shown = {
        name: decide(name, "do")[1].seen[-1][1] for name in ("naive", "robust_naive", "cot", "robust_cot", "few_shot")
    }
    assert {name for name, text in shown.items() if FORM in text} == {"robust_naive", "robust_cot"}
    assert {name for name, text in shown.items() if "an example" in text} == {"few_shot"}
    assert shown["few_shot"].count("an example") == 1
    assert decide("few_shot", "do", examples=3)[1].seen[-1][1].count("an example") == 3
    assert "an example" not in decide("naive", "do", examples=3)[1].seen[-1][1]


def test_a_game_of_many_steps_shows_the_last_ones():
    long = History("live", "start", tuple(Step(f"a{i}", f"o{i}", f"n{i}") for i in range(9)))
    of = lambda **options: dialogue_of(METHODS["lac"], GAME, PromptConfig(**options), "some_model", None, 0)
    short, dropped = of().trim(long, 0)
    assert dropped == 0 and [step.action for step in short.steps] == ["a6", "a7", "a8"]  # by twos; not for lack of room
    assert (short.observation, short.note) == ("o5", "n5")
    assert len(of(history=8).trim(long, 0).history.steps) == 7
    assert of(history=9).trim(long, 0) == (long, 0)
