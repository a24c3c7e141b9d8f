"""Trajectories of ALFWorld, WebShop and Crafter that lie in the package: to fine-tune on, and as examples in prompts.

Each game has 12 successes and 6 failures (`GAME/demonstrations.jsonl`) and as many to evaluate on
(`GAME/held_out.jsonl`), on tasks that no run plays. The players search for what they have not seen, and make mistakes.
A line is a trajectory in the format of `nlrl_jax.run.trajectories`, with its "task" and two lists of other notes, one
after each observation: "thoughts" and, for Crafter, "values".

    task                of ALFWorld its kind and the seed of `games.make(kind, seed, "train")`; of WebShop a product and
                        the number of the instruction about it; of Crafter "" and the seed of the world
    success             of Crafter: three achievements or more in 24 steps; a failure has one at most

The files were written by `python -m nlrl_jax.envs.make_demonstrations alfworld webshop crafter` at commit 42a2f65
(Crafter's with `_BATCH = 8` in envs/crafter/demonstrations.py); a test plays each trajectory again.
"""

from __future__ import annotations

import itertools
import json
import pathlib
from typing import Any, NamedTuple

from nlrl_jax.roles.dialogues import BAD, THINK, THINK_REPLY, History, Step, verdict


class Recorded(NamedTuple):
    """A trajectory. history: with reflections."""

    history: History
    success: bool
    task: tuple[str, int]


def demonstrations(game: str, successes: int, failures: int, held_out: bool = False) -> list[Recorded]:
    """Loads the first trajectories of each ending, successes first; no more than there are."""
    by_ending: dict[bool, list[Recorded]] = {True: [], False: []}
    for row in _rows(game, held_out):
        by_ending[row["success"]].append(Recorded(_history(row, "Critic"), row["success"], tuple(row["task"])))
    return by_ending[True][:successes] + by_ending[False][:failures]


def examples(game: str, label: str, number: int) -> list[History]:
    """Loads up to 12 successes with notes of a kind, those without a BAD step first.

    Args:
      label: one of `dialogues.NOTES`, or "Think": new thoughts are steps before the actions.
    """
    rows = [row for row in _rows(game, False) if row["success"]]
    rows.sort(key=lambda row: any(verdict(note) == BAD for _, _, note in row["steps"]))
    return [_history(row, label) for row in rows[:number]]


def _rows(game: str, held_out: bool) -> list[dict[str, Any]]:
    path = pathlib.Path(__file__).parent / game / f"{'held_out' if held_out else 'demonstrations'}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _history(row: dict[str, Any], label: str) -> History:
    """Turns a recorded row into the history that the dialogue of a label shows, notes and thoughts in their places."""
    reflections = [note for _, _, note in row["steps"]]
    reached = row["success"] and "values" not in row  # nobody reaches Crafter's goal in 24 steps
    notes = {
        "Critic": ["", *reflections],
        "Thought": row["thoughts"],
        "Reward": ["", *["0"] * (len(reflections) - 1), str(int(reached))],
        "Value": row.get("values", [""] * (len(reflections) + 1)),
    }.get(label, [""] * (len(reflections) + 1))
    steps = [Step(*step[:2], note) for step, note in zip(row["steps"], notes[1:], strict=True)]
    if label == "Think":
        actions, steps = steps, []
        pairs = itertools.pairwise(["", *row["thoughts"]])
        for (last_thought, thought), action in zip(pairs, actions, strict=False):
            if thought != last_thought:
                steps.append(Step(f"{THINK} {thought}", THINK_REPLY))
            steps.append(action)
    return History(row["goal"], row["observation"], tuple(steps), notes[0])
