"""A corridor whose model's beliefs are known: its prior prefers the wrong way, its imagination knows better."""

import math

from nlrl_jax.algorithms.planners import lats
from nlrl_jax.roles.dialogues import History, Step
from nlrl_jax.types import HostGame, Outcome, Reply, Score, Start

ACTIONS = ("left", "right", "wait")
PRIOR = {"left": 0.6, "right": 0.3, "wait": 0.1}
GOAL, LENGTH = 3, 6


def where(history, pending=()):
    """The position after the history and the pending action, as the corridor moves."""
    x = 1
    for action in [*(step.action for step in history.steps), *pending]:
        x += {"left": -1, "right": 1}.get(action, 0)
    return max(0, x)


class Corridor:
    """A model that knows the corridor: it imagines rightly, judges by the distance, and its prior prefers `left`."""

    can_score = True

    def __init__(self, ends=True):
        self.roles, self.asked, self.ends = [], [], ends

    def complete(self, chats, sampling, role, seed=0, stop=()):
        self.roles.append((role, len(chats)))
        self.asked += [(role, chat) for chat in chats]
        return [Reply(self.write(chat), 1, 1, self.ends) for chat in chats]

    def write(self, chat):
        history, line = chat.context["history"], chat.context["line"]
        kind = line.splitlines()[-1]
        if kind == "Action:":
            return " left"
        if kind == "Observation:":
            return f" at {where(history, [line.splitlines()[0].removeprefix('Action: ')])}"
        if kind == "Critic:":
            x, before = where(history), where(History("", "", history.steps[:-1]))
            word = "GOOD" if x == GOAL else "BAD" if abs(GOAL - x) > abs(GOAL - before) else "UNKNOWN"
            return f" I am at {x}. This step is {word}."
        if kind == "Thought:":
            return " I want to go right."
        if kind == lats.REFLECT:
            return " I should have gone right."
        if kind == "Reward:":
            return " 1" if where(history) == GOAL else " 0"
        if kind == "Value:":
            return f" The value is {where(history)}/{GOAL}."
        if kind.endswith("is"):  # a probability
            return f" {100 * self.good(history, line):.0f}%"
        raise AssertionError(line)

    @staticmethod
    def good(history, line):
        pending = [text.removeprefix("Action: ") for text in line.splitlines() if text.startswith("Action: ")]
        return 1 / (1 + math.exp(abs(GOAL - where(history, pending)) - 1))

    def score(self, chats, continuations, role):
        self.roles.append((role, sum(map(len, continuations))))
        self.asked += [(role, chat) for chat in chats]
        rows = []
        for chat, texts in zip(chats, continuations, strict=True):
            p = self.good(chat.context["history"], chat.context["line"])
            table = {" GOOD": p, " BAD": 1 - p} | {f" {action}": value for action, value in PRIOR.items()}
            rows.append([Score(math.log(table[text]), 2 if text == " wait" else 1) for text in texts])
        return rows


class Silent(Corridor):
    can_score = False

    def score(self, chats, continuations, role):
        raise NotImplementedError


def advance(states, actions):
    outcomes = []
    for x, action in zip(states, actions, strict=True):
        x = max(0, x + {"left": -1, "right": 1}.get(action, 0))
        outcomes.append(Outcome(x, f"at {x}", float(x == GOAL), x == GOAL, x == GOAL))
    return outcomes


GAME = HostGame(
    "corridor", "Reach 3.", ACTIONS, LENGTH, ("",), lambda tasks: [Start(1, "3", "at 1")] * len(tasks), advance,
    reversible=True,
)  # fmt: skip
TASKS = [("", 0), ("", 1)]
START = [History("3", "at 1"), History("3", "at 1", (Step("right", "at 2"),))]
