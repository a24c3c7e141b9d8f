"""The page of a language TD run: the curve, evaluations before and after, and examples that it learned from."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nlrl_jax.algorithms.language_td import Target
from nlrl_jax.backends.usage import Usage
from nlrl_jax.roles.board_games import View
from nlrl_jax.run.exchanges import Exchange, exchange
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.plots import Series, compare, metric_line
from nlrl_jax.run.report import Exchanges, Picture, Table, model_name, tokens, write_report
from nlrl_jax.run.reports.tidy import Measurement, Measurements
from nlrl_jax.statistics import header, share

TARGETS, POSITIONS = 4, 8  # on the page: per iteration; judged

Draw = Callable[[str], str]  # a view's board -> the board on the page


def learned(targets: Sequence[Target], iteration: int, draw: Draw) -> list[Exchange]:
    """Some targets of an iteration with the variations that they summarise."""
    records = []
    for view, text, evaluated in targets[:TARGETS]:
        variations = []
        for line, words in evaluated:
            moves = ",".join(step.action for step in line.steps)
            variations.append((f"variation {moves}", f"{line.winner} wins" if line.over else words))
        title = f"Learned from in iteration {iteration + 1}: {view.player} to move"
        records.append(exchange(title, draw(view.board), *variations, ("aggregated", text)))
    return records


def judged(
    positions: Sequence[tuple[View, float, str, str]], players: tuple[str, str], draw: Draw, learning: bool
) -> list[Exchange]:
    """Evaluations of some test positions before and after training.

    Args:
      positions: with their win rates, from -1 to 1 for the first player, and the evaluations before and after training.
      learning: False for a run of no iterations, whose evaluations are shown once.
    """
    records = []
    for view, rate, old, new in positions[:POSITIONS]:
        side = players[0 if rate > 0 else 1]
        title = f"{view.player} to move; {side} wins {(1 + abs(rate)) / 2:.0%} of the games from here"
        words = [("evaluation before", old), ("evaluation after", new)] if learning else [("evaluation", old)]
        records.append(exchange(title, draw(view.board), *words))
    return records


def measurements(stored: Mapping[str, Any], thresholds: Sequence[float]) -> Measurements:
    """The tidy rows of a run: methods are the value model before and after and the baselines, over all positions.

    Args:
      stored: `results.read` of the run. thresholds: the run's own first.
    """
    judges = {"value model before": stored["before"], "value model after": stored["after"]}
    if not stored["iterations"]:
        judges = {"value model": stored["before"]}
    suffixes = {f"{threshold:g}": f"_{threshold:g}" * (n > 0) for n, threshold in enumerate(thresholds)}
    return Measurements(
        Measurement(name, "all", f"{metric} at {threshold}", judged[f"{metric}{suffix}"])
        for name, judged in {**judges, **stored["beside"]}.items()
        for threshold, suffix in suffixes.items()
        for metric in ("accuracy", "answered", "positions")
    )


def table(stored: Mapping[str, Any], thresholds: Sequence[float]) -> list[dict[str, Any]]:
    """A row each for the value model before and after and for the baselines, at every threshold."""
    numbers, rows = measurements(stored, thresholds), []
    for name in numbers.methods:
        row = {"who": name}
        for threshold in (f"{threshold:g}" for threshold in thresholds):
            metrics = (f"{metric} at {threshold}" for metric in ("accuracy", "answered", "positions"))
            accuracy, answered, positions = (numbers.mean(name, metric).mean for metric in metrics)
            named = round(answered * positions)  # the units of the interval
            row[f"right at {threshold}"] = share(round(accuracy * named) if named else 0, named).text(".3f")
            row[f"answered of {positions:.0f}"] = f"{answered:.3f}"
        rows.append(row)
    return rows


def _curve(run_dir: pathlib.Path, stored: Mapping[str, Any]) -> Picture:
    """Accuracy and answers by iteration, and the baselines' as level lines."""
    labels, run = {"accuracy": "value model, of those answered", "answered": "answered"}, read_metrics(run_dir)
    # There is no accuracy where no position was answered.
    lines = [metric_line([run], f"eval/{name}", label, stored["before"][name]) for name, label in labels.items()]
    for name, judged in stored["beside"].items():
        lines.append(Series(name, lines[-1].x, np.full((1, len(lines[-1].x)), judged["accuracy"])))
    picture = compare({"Advantage on held-out positions": lines}, run_dir / "curve.png", "iteration", "share")
    caption = "Share of held-out positions where the side that is ahead is named; level lines do not learn."
    return Picture(picture, caption)


def write(
    run_dir: pathlib.Path,
    config: Mapping[str, Any],
    stored: Mapping[str, Any],
    exchanges: Sequence[Exchange],
    usage: Usage,
    thresholds: Sequence[float],
) -> pathlib.Path:
    """The page of a finished run.

    Args:
      stored: `results.read` of the run; its baselines are level lines.
      thresholds: the run's own first.
    """
    measurements(stored, thresholds).write(run_dir)
    before, learning = stored["before"], bool(stored["iterations"])
    about = (
        f"{header('the positions where a side was named, all different', shares=True)} Positions of one game are "
        "counted as independent, and the value model was trained once, so the interval does not cover other trainings."
    )
    right = f"{before['accuracy']:.3f}" + f" -> {stored['after']['accuracy']:.3f}" * learning
    return write_report(
        run_dir,
        title=f"Language TD: {model_name(config['model'])} on breakthrough",
        question="Can a value model learn which side is ahead from evaluations of later positions?",
        config=config,
        blocks=[
            Table("Results", table(stored, thresholds), about),
            *([_curve(run_dir, stored)] if learning else []),
            tokens(usage),
            Exchanges(exchanges),
        ],
        headline=f"right about who is ahead: {right}",
    )
