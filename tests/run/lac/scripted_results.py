"""Finished methods of a scripted model on two corridors, one of which it misjudges: real records for the reports."""

import dataclasses
import functools

from nlrl_jax.algorithms.lac import LACConfig
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.config import replace
from nlrl_jax.rollouts.host_games import play
from nlrl_jax.run.lac.episodes import as_json
from nlrl_jax.types import HostGame, Outcome, Start
from tests.algorithms.corridor import ACTIONS, GAME, GOAL, Corridor

KINDS = ("open", "muddy")
TASKS = [(kind, seed) for seed in range(3) for kind in KINDS]


def _step(states, actions):
    outcomes = []
    for (kind, x), action in zip(states, actions, strict=True):
        x = max(0, x + {"left": -1, "right": 0 if kind == "muddy" else 1}.get(action, 0))
        outcomes.append(Outcome((kind, x), f"at {x}", float(x == GOAL), x == GOAL, x == GOAL))
    return outcomes


CORRIDORS: HostGame = dataclasses.replace(
    GAME,
    kinds=KINDS,
    reset=lambda tasks: [Start((kind, 1), "3", "at 1") for kind, _ in tasks],
    step=_step,
    board=lambda state: "\n".join(["#####", "".join("P" if i == state[1] else "." for i in range(5))]),
    optimal=lambda state: GOAL - state[1],
)


class Thinker(Corridor):
    """It thinks first."""

    def write(self, chat):
        if chat.context["line"] == "Action:" and not chat.messages[-1]["content"].count("think:"):
            return " think: <b>which</b> way?"
        return super().write(chat)


@functools.cache
def finished(name: str):
    """The result of a method on all tasks, as a run stores it."""
    model = Thinker() if name == "react_think" else Corridor()
    config = replace(LACConfig(), candidates=3, depth=2)
    dialogue = METHODS[name].dialogue(CORRIDORS.rules, compact=True)
    made = []

    def decide(histories, t):
        made.append(METHODS[name].decide(model, dialogue, histories, ACTIONS, config, t))
        return made[-1]

    episodes = play(CORRIDORS, decide, TASKS)
    return {
        "method": name,
        "seconds": 3.0,
        "problems": dict(sum((one.problems for one in made), start=made[0].problems.copy())),
        "calls": dict(sum((one.calls for one in made[1:]), start=made[0].calls)),
        "tokens": {"read": 6000, "written": 60},
        "episodes": [as_json(episode) for episode in episodes],
    }
