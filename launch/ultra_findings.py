"""What an analyst found, as a file: it was paid for, and a resumed run must not ask again."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np

from nlrl_jax.algorithms.ultra import CriticalState, Findings
from nlrl_jax.run.directory import write_atomically
from nlrl_jax.text.trajectory import Action, Verdict


def save(findings: Findings, path: pathlib.Path) -> None:
    """Writes JSON."""
    states = [
        {
            "episode": state.episode,
            "timeslot": state.verdict.timeslot,
            "suggested": state.verdict.action,
            "explanation": state.verdict.explanation,
            "judged": state.verdict.judged,
            "observation": np.asarray(state.observation, np.float64).tolist(),
            "taken": state.taken,
            "rewards": list(state.rewards.items()),
            "reasons": list(state.reasons.items()),
        }
        for state in findings.states
    ]
    write_atomically(path, json.dumps({"counts": findings.counts, "analyses": findings.analyses, "states": states}))


def load(path: pathlib.Path) -> Findings:
    """The findings that `save` wrote.

    Raises:
      ValueError: another kind of file.
    """
    try:
        told = json.loads(path.read_text())
        states = [
            CriticalState(
                state["episode"],
                _verdict(state),
                np.asarray(state["observation"], np.float32),
                _action(state["taken"]),
                {_action(action): reward for action, reward in state["rewards"]},
                {_action(action): text for action, text in state["reasons"]},
            )
            for state in told["states"]
        ]
        return Findings(states, told["analyses"], told["counts"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not hold an analyst's findings ({error}); delete it to ask again") from error


def _verdict(state: dict[str, Any]) -> Verdict:
    """Of a state as it was written; files from before `Verdict.judged` do not have it."""
    judged = state.get("judged", True)
    return Verdict(state["timeslot"], True, _action(state["suggested"]), state["explanation"], judged)


def _action(written: Any) -> Action | None:
    return tuple(written) if isinstance(written, list) else written
