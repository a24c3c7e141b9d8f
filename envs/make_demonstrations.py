"""Writes the trajectories for fine-tuning that lie in the package: 12 successes and 6 failures of a game, and as many
that are held out.

    python -m envs.make_demonstrations webshop
"""

from __future__ import annotations

import itertools
import json
import pathlib
import random
import sys
from collections.abc import Iterator
from typing import Any

from envs.alfworld import annotate, games
from envs.alfworld.belief import Belief
from envs.alfworld.transcripts import EXPERT, Walker, walk
from nlrl_jax.roles.dialogues import History

SUCCESSES, FAILURES = 12, 6


def row(history: History, success: bool, task: tuple[str, int], thoughts: list[str], **more: Any) -> dict[str, Any]:
    steps = [list(step) for step in history.steps]
    fields = {"task": task, "goal": history.goal, "observation": history.observation, "steps": steps}
    return {**fields, "success": success, "thoughts": thoughts, **more}


def alfworld(held_out: bool) -> list[dict[str, Any]]:
    """Of each kind of task a success without mistakes, one with some, and a failure; at most 16 steps."""
    first, rows = (3 if held_out else 1) << 40, []
    for walker, success in ((EXPERT, True), (Walker(), True), (Walker(), False)):
        for kind in games.KINDS:
            for seed in itertools.count(first):
                one = walk(kind, seed, walker, "Critic", 16)
                flawed = any("BAD" in step.note for step in one.history.steps)
                if one.success == success and flawed == (walker is not EXPERT) and len(one.history.steps) > 4:
                    rows.append(row(one.history, success, (kind, seed), _household_thoughts(one.history)))
                    break
            first += 1
        first += 1 << 20
    return rows


def _household_thoughts(history: History) -> list[str]:
    belief, thoughts = Belief(history.goal, history.observation), []
    for step in history.steps:
        thoughts.append(_household_thought(belief, step.action))
        belief = belief.after(step.action, step.observation)
    return [*thoughts, annotate.situation(belief)]


def _household_thought(belief: Belief, command: str) -> str:
    wanted, (verb, *rest) = belief.next(), command.split()
    plan = f'I will try "{command}".'
    if wanted.commands and command == wanted.commands[0]:
        plans = {"go": "I will go there.", "open": "I will open it first.", "take": "I will take it."}
        plans |= {"put": "I will put it there.", "use": "I will turn it on."}
        plan = plans.get(verb, "I will do that now.")
    elif wanted.verb == "find" and verb in ("go", "open"):
        place = " ".join(rest[-2:])
        plan = f"I will check {place}." if place not in belief.looked else plan
    return f"{annotate.situation(belief)} {plan}"


def crafter(held_out: bool) -> list[dict[str, Any]]:
    from envs.crafter.demonstrations import demonstrations

    made = demonstrations(SUCCESSES, FAILURES, 0, held_out)
    return [row(one.history, one.success, ("", one.seed), one.thoughts, values=one.values) for one in made]


def webshop(held_out: bool) -> list[dict[str, Any]]:
    """Instructions of products that no task is about, each once."""
    from envs.webshop import catalogue, demonstrations
    from envs.webshop.engine import Shop, State

    own = catalogue.load("")
    shop, goals = Shop(own), [goal for i, goal in enumerate(own.demonstrations) if (i % 3 == 0) == held_out]
    random.Random("demonstrations").shuffle(goals)
    number = {goal.instruction: i for _, group in _by_product(own.demonstrations) for i, goal in enumerate(group)}
    rows, left = [], {True: SUCCESSES, False: FAILURES}
    for goal in {goal.instruction: goal for goal in goals}.values():
        success = len(rows) < SUCCESSES
        one = demonstrations.visit(shop, goal, random.Random(goal.instruction), "Critic", careful=success)
        if one and one.success == success and left[success]:
            left[success] -= 1
            task = goal.product.asin, number[goal.instruction]
            rows.append(row(one.history, success, task, _thoughts(shop, State(goal), one.history)))
    return rows


def _by_product(goals) -> Iterator:
    return itertools.groupby(goals, lambda goal: goal.product.asin)


def _thoughts(shop, state, history: History) -> list[str]:
    from envs.webshop import engine
    from envs.webshop.buyer import wanted_options

    thoughts = []
    for step in history.steps:
        button = step.action[6:-1]
        if state.page == engine.SEARCH:
            thought = "I will search for what I was asked to buy."
        elif button == engine.BACK:
            thought = "None of these fits, so I will search again in other words."
        elif button == engine.PREVIOUS:
            fits = state.page == engine.SUB
            thought = "I will go back to the product." if fits else "This one does not fit, so I will go back."
        elif button == engine.BUY:
            thought = "I will buy it now."
        elif button in engine.SUBPAGES:
            thought = f"I will read the {button.lower()} before I decide."
        elif button in shop.products:
            thought = f"I will take a closer look at {button}."
        elif button in wanted_options(state.goal, shop.products[state.asin]):
            thought = f"I was asked for {button}, so I will choose it."
        else:
            thought = f"I will choose {button}."
        thoughts.append(thought)
        state = shop.step(state, step.action).state
    return [*thoughts, "I have bought it."]


def main(arguments: list[str]) -> None:
    makers = {"alfworld": alfworld, "crafter": crafter, "webshop": webshop}
    for name in arguments:
        for file, held_out in (("demonstrations", False), ("held_out", True)):
            path = pathlib.Path(__file__).parent / name / f"{file}.jsonl"
            rows = makers[name](held_out)
            path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in rows), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
