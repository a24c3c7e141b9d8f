"""The page of a language TD run: the curve, evaluations before and after, and examples that it learned from."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nlrl_jax.algorithms.language_td import Target
from nlrl_jax.roles.board_games import View
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.records import Exchange, exchange
from nlrl_jax.run.report import write_report
from nlrl_jax.run.results import Evaluation

TARGETS, POSITIONS = 4, 8  # on the page: per iteration; judged

Draw = Callable[[str], str]  # a view's board -> the board on the page


def learned(targets: Sequence[Target], iteration: int, draw: Draw) -> list[Exchange]:
    """Some targets of an iteration with the variations behind them."""
    kept = []
    for view, text, evaluated in targets[:TARGETS]:
        variations = [
            (f"variation {','.join(s.action for s in line.steps)}", f"{line.winner} wins" if line.over else words)
            for line, words in evaluated
        ]
        title = f"Learned from in iteration {iteration + 1}: {view.player} to move"
        kept.append(exchange(title, draw(view.board), *variations, ("aggregated", text)))
    return kept


def judged(
    positions: Sequence[tuple[View, float]],
    before: Sequence[str],
    after: Sequence[str],
    players: tuple[str, str],
    draw: Draw,
) -> list[Exchange]:
    """Evaluations of some test positions before and after training.

    Args:
      positions: with their win rates, from -1 to 1 for the first player.
    """
    kept = []
    for (view, rate), old, new in list(zip(positions, before, after, strict=True))[:POSITIONS]:
        side = players[0 if rate > 0 else 1]
        title = f"{view.player} to move; {side} wins {(1 + abs(rate)) / 2:.0%} of the games from here"
        kept.append(exchange(title, draw(view.board), ("evaluation before", old), ("evaluation after", new)))
    return kept


def write(
    run_dir: pathlib.Path,
    config: Mapping[str, Any],
    before: Evaluation,
    after: Evaluation,
    exchanges: Sequence[Exchange],
    notes: Sequence[str],
) -> pathlib.Path:
    """The page of a finished run.

    Args:
      before, after: "accuracy", "answered", "positions" and "level".
    """
    run = read_metrics(run_dir)
    evaluated = np.isfinite(run["eval/accuracy"])
    x = [0, *(run["iteration"][evaluated] + 1)]
    lines = [
        Series(label, x, np.array([[before[name], *run[f"eval/{name}"][evaluated]]]))
        for label, name in (("correct, of those answered", "accuracy"), ("answered", "answered"))
    ]
    picture = compare({"Advantage on held-out positions": lines}, run_dir / "curve.png", "iteration", "share")
    return write_report(
        run_dir,
        title="Language TD on breakthrough",
        question="Does a value model learn to say which side is ahead from evaluations of where the game leads?",
        config=config,
        summary={name: (before[name], after[name]) for name in after},
        curves=[picture],
        notes=notes,
        exchanges=exchanges,
    )
