"""What a run of language TD leaves to be read: records, the curve, evaluations before and after, and its plan."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nlrl_jax.algorithms.language_td import Target
from nlrl_jax.algorithms.language_td_data import Data
from nlrl_jax.backends.usage import Usage, describe_usage
from nlrl_jax.files import write_atomically
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.report import write_report

SHOWN = 4


def write_record(run_dir: pathlib.Path, iteration: int, targets: Sequence[Target]) -> None:
    """Keeps some of what an iteration learned from: records/<iteration>.json."""
    kept = [
        {
            "board": target.view.board,
            "player": target.view.player,
            "variations": [
                [",".join(s.action for s in line.steps), f"{line.winner} wins" if line.over else text]
                for line, text in target.evaluated
            ],
            "text": target.text,
        }
        for target in targets[:SHOWN]
    ]
    (run_dir / "records").mkdir(parents=True, exist_ok=True)
    write_atomically(run_dir / "records" / f"{iteration:05d}.json", json.dumps(kept, ensure_ascii=False, indent=1))


def write(
    run_dir: pathlib.Path,
    config: Mapping[str, Any],
    results: Mapping[str, Mapping[str, float]],
    data: Data,
    shown: np.ndarray,
    before: Sequence[str],
    after: Sequence[str],
    usage: Usage,
) -> pathlib.Path:
    """The page of a finished run.

    Args:
      shown: which test positions were judged; before, after: their evaluations by the value model.
    """
    run = read_metrics(run_dir)
    there = np.isfinite(run["eval/accuracy"])
    x = [0, *(run["iteration"][there] + 1)]
    lines = [
        Series(label, x, np.array([[results["before"][name], *run[f"eval/{name}"][there]]]))
        for label, name in (("right, of those answered", "accuracy"), ("answered", "answered"))
    ]
    picture = compare({"Advantage on unseen positions": lines}, run_dir / "curve.png", "iteration", "share")
    exchanges = []
    for n, old, new in list(zip(shown, before, after, strict=True))[:8]:
        view, rate = data.test[n], data.win_rates[n]
        ahead = data.players[0 if rate > 0 else 1]
        title = f"{view.player} to move; {ahead} wins {(1 + abs(rate)) / 2:.0%} of the games from here"
        parts = [("evaluation before", old), ("evaluation after", new)]
        exchanges.append({"title": title, "board": _grid(view.board), "parts": parts})
    files = sorted((run_dir / "records").glob("*.json"))
    for path in dict.fromkeys([*files[:1], *files[-1:]]):
        for kept in json.loads(path.read_text()):
            title = f"Learned from in iteration {int(path.stem) + 1}: {kept['player']} to move"
            parts = [(f"variation {moves}", text) for moves, text in kept["variations"]]
            exchanges.append(
                {"title": title, "board": _grid(kept["board"]), "parts": [*parts, ("aggregated", kept["text"])]}
            )
    names = ("accuracy", "answered", "positions", "level")
    return write_report(
        run_dir,
        title="Language TD on breakthrough",
        question="Does a value model learn to say which side is ahead from evaluations of where the game leads?",
        config=config,
        summary={name: (results["before"][name], results["after"][name]) for name in names},
        curves=[picture],
        notes=describe_usage(usage),
        exchanges=exchanges,
    )


def _grid(board: str) -> str:
    """The drawn board without the names of its rows and columns."""
    *rows, letters = board.splitlines()
    return "\n".join(" ".join(row[-len(letters.strip()) :]) for row in rows)


def plan(config: Any) -> str:
    """What a run would ask of its models: upper bounds, nothing is loaded or played."""
    ends = config.states * config.variations
    rows = [
        ("value (where variations end)", ends, 330, config.max_tokens),
        ("aggregator", config.states, 400 + config.variations * 450, config.large_max_tokens),
        ("value (judged)", config.test_states, 330, config.max_tokens),
    ]
    lines = [f"{'role':30}{'calls an iteration':>20}{'tokens read, about':>22}{'written, at most':>20}"]
    lines += [f"{name:30}{n:>20,}{n * read:>22,}{n * wrote:>20,}" for name, n, read, wrote in rows]
    tokens = sum(n * (read + wrote) for _, n, read, wrote in rows) * config.iterations
    searches = ends * config.look_ahead + config.test_states * config.judge_games * 20
    simulations = searches * config.simulations
    lines += [
        f"{config.iterations} iterations: at most {tokens / 1e9:.2f}e9 tokens, and SFT on {config.states:,} examples x "
        f"{config.epochs} epochs each.",
        f"MCTS before it: {searches:,} moves of {config.simulations} simulations x {config.rollouts} rollouts = "
        f"{simulations * config.rollouts / 1e9:.2f}e9 playouts (20 moves a judged game assumed).",
    ]
    return "\n".join(lines)
