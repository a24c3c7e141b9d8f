"""ReAct, RAP, ICPI and RAFA on the corridor, with values worked by hand."""

import dataclasses
import math

import numpy as np
import pytest

from nlrl_jax.algorithms.imagine import Caller, PlanningConfig
from nlrl_jax.algorithms.lac import LACConfig
from nlrl_jax.algorithms.planners import methods, rafa, rap, react
from nlrl_jax.config import make
from nlrl_jax.roles.dialogues import Dialogue, Step
from nlrl_jax.roles.messages import ChatDialogue
from nlrl_jax.types import HostGame
from tests.algorithms.corridor import ACTIONS, GOAL, PRIOR, START, Corridor, Silent, where


class Onward(Corridor):
    """Its imagination goes on to the right, past the goal where nothing stops it."""

    def write(self, chat):
        return " right" if chat.context["line"] == "Action:" else super().write(chat)


LEFT, RIGHT, WAIT = (math.log(PRIOR[action]) for action in ACTIONS)


# Q of left, right and wait, the likeliest first. Corridor goes on to the left, Onward to the right; 3 is the goal.
@pytest.mark.parametrize(
    "name, model, at, depth, q",
    [
        ("rafa", Corridor, 1, 2, [0, 2 / 3, 1 / 3]),  # at 0, 0; at 2, 1; at 1, 0
        ("rafa", Corridor, 2, 2, [1 / 3, 1, 2 / 3]),  # right is at 3 and ends there
        ("rafa", Onward, 1, 4, [0.99**3, 0.99, 0.99**2]),  # each ends at 3, after 4, 2 and 3 steps
        ("rafa", Onward, 1, 1, [0, 2 / 3, 1 / 3]),
        ("rap", Corridor, 2, 3, [3 * LEFT, RIGHT, WAIT + 2 * LEFT]),
        ("rap", Onward, 1, 4, [LEFT + 3 * RIGHT, 2 * RIGHT, WAIT + 2 * RIGHT]),
        ("icpi", Corridor, 2, 2, [0, 1, 0]),
        ("icpi", Onward, 1, 4, [0.9**3, 0.9, 0.9**2]),
    ],
)
def test_planners_value_every_step_and_stop_where_the_task_is_done(name, model, at, depth, q):
    method = methods.METHODS[name]
    dialogue, config = method.dialogue("Reach 3.", False), make(LACConfig, depth=depth)
    made = method.decide(model(), dialogue, [START[at - 1]], ACTIONS, config, 0)
    (record,) = made.thinking
    assert record["candidates"] == list(ACTIONS)
    np.testing.assert_allclose(record["q"], q, rtol=1e-6)
    assert made.actions == [ACTIONS[int(np.argmax(q))]]
    places = [where(START[at - 1], [step[0] for step in leaf]) for (leaf,) in record["futures"]]
    assert all(len(leaf) == depth or place == GOAL for (leaf,), place in zip(record["futures"], places, strict=True))


def made_where_every_value_is(note):
    """RAFA's decisions where the model writes one note as every value."""

    class Writer(Corridor):
        def write(self, chat):
            return f" {note}" if chat.context["line"].endswith("Value:") else super().write(chat)

    dialogue = methods.METHODS["rafa"].dialogue("Reach 3.", False)
    return rafa.decide(Caller(Writer(), dialogue, PlanningConfig(depth=3), 0), START, ACTIONS)


def test_of_equal_values_the_likelier_candidate_is_taken():
    made = made_where_every_value_is("The value is 1/2.")
    assert made.thinking[0]["q"] == [0.5, 0.5, 0.5] and made.actions == ["left", "left"]
    assert not any("Value" in step[1] for step in made.thinking[0]["futures"][0][0])


@pytest.mark.parametrize("note", ["8", "The value is 85.", "-1", "0.5 to 1", "level 1"])
def test_a_value_outside_0_to_1_or_unreadable_is_no_success_and_counted(note):
    made = made_where_every_value_is(note)
    assert made.thinking[0]["q"] == [0, 0, 0] and made.problems["critic/no number"] == 18


def test_planners_need_rollouts_and_rap_needs_log_probabilities():
    dialogue = Dialogue.of("", "")
    assert react.decide(Caller(Corridor(), dialogue, PlanningConfig(), 0), START, ACTIONS).actions == ["left", "left"]
    with pytest.raises(ValueError, match="depth is 0"):
        rap.decide(Caller(Corridor(), dialogue, PlanningConfig(depth=0), 0), START, ACTIONS)
    with pytest.raises(NotImplementedError, match="RAP adds up log-probabilities"):
        rap.decide(Caller(Silent(), dialogue, PlanningConfig(), 0), START, ACTIONS)


def test_react_in_a_chat_reads_whole_replies_and_shows_them_again():
    class Talker(Corridor):
        def write(self, chat):
            return "The exit is near.\nAction: left would be wrong.\nAction: right"

    game = HostGame("corridor", "Walk.", ACTIONS, 9, ("",), reset=list, step=list)
    dialogue = ChatDialogue.about(game, compact=False)
    decisions = react.decide(Caller(Talker(), dialogue, PlanningConfig(), 0), START, ACTIONS)
    assert decisions.actions == ["right", "right"] and not decisions.problems
    history = START[0].noted(decisions.notes[0]).then(Step("right", "a wall"))
    chat = dialogue.chat(history, "")
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant", "user"]
    assert chat.messages[0]["content"].startswith("Walk.\nEnd each reply with a line")
    assert chat.messages[2]["content"] == decisions.notes[0] and chat.messages[3]["content"] == "a wall"
    upward = ChatDialogue.about(dataclasses.replace(game, actions=("up", "down")), compact=True)
    lost = react.decide(Caller(Corridor(), upward, PlanningConfig(), 0), START, ("up", "down"))
    assert lost.problems == {"policy/no action": 2} and set(lost.actions) <= {"up", "down"}


def test_a_chat_without_its_oldest_turns_still_shows_the_task():
    game = HostGame("corridor", "Walk.", ACTIONS, 9, ("",), reset=list, step=list)
    history = dataclasses.replace(START[0], observation="The task: find the exit.")
    for t in range(8):
        history = history.then(Step("right", f"wall {t}", f"Action: right, {t}"))
    whole = ChatDialogue.about(game, compact=True)
    room = whole._size(history, "") - 1
    trimmed = dataclasses.replace(whole, room=room).trim(history, 0)
    again = dataclasses.replace(whole, room=room - 40).trim(trimmed.history, 0)
    for shown, dropped in ((trimmed, trimmed.dropped), (again, trimmed.dropped + again.dropped)):
        first, *rest = whole.chat(shown.history, "").messages
        assert "The task: find the exit." in first["content"] and dropped > 0
        assert first["content"].endswith(f"[{dropped} turns later; they are left out]\nwall {dropped - 1}")
        assert rest[-1]["content"] == "wall 7" and len(rest) == 2 * (8 - dropped)


def test_thoughts_are_steps_that_the_game_does_not_see():
    class Thinker(Corridor):
        def write(self, chat):
            return " right" if chat.context["history"].steps else " think: I go right."

    decisions = react.decide(Caller(Thinker(), Dialogue.of("", ""), PlanningConfig(), 0), START[:1], ACTIONS)
    assert decisions.actions == ["right"]
    assert decisions.thoughts == [["think: I go right."]]
