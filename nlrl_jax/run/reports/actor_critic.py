"""The page of a natural-language actor-critic run: all methods' curves and results, and exchanges."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nlrl_jax.algorithms.language_actor_critic import IterationLog
from nlrl_jax.backends.usage import Usage
from nlrl_jax.run.exchanges import Exchange, exchange
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.plots import Series, compare, metric_line
from nlrl_jax.run.report import Exchanges, Picture, Table, model_name, tokens, write_report
from nlrl_jax.run.reports.tidy import Column, Measurement, Measurements

OUTCOMES = ("win", "tie", "loss")
SHOWN = 4  # improvements of an iteration
# (opponent, method) -> what `results.read` read in run_dir / opponent / method
Results = Mapping[tuple[str, str], Mapping[str, Any]]


def exchanges(log: IterationLog, stage: str, draw: Callable[[str], str]) -> list[Exchange]:
    """The longest aggregation of an iteration and the improvements of its most frequent positions.

    Args:
      draw: a view's board -> the board on the page.
    """
    records = []
    if log.values:
        target = max(log.values, key=lambda target: len(target.prompt.messages[-1]["content"]))
        title = f"Aggregation, {stage}: {target.view.player} plays {target.action}"
        parts = ("prompt", target.prompt.messages[-1]["content"]), ("reply", target.text)
        records.append(exchange(title, draw(target.view.board), *parts))
    for target in sorted(log.improvements, key=lambda target: -target.visits)[:SHOWN]:
        first: dict[str, str] = {}  # evaluation of each move
        for action, text in target.evaluations:
            first.setdefault(action, text)
        values = [(f"language value of {action}", text) for action, text in first.items()]
        title = f"Improvement, {stage}: {target.view.player} to move, {target.visits} visits"
        records.append(exchange(title, draw(target.view.board), *values, ("improved policy", target.text)))
    return records


def draw(run_dir: pathlib.Path, results: Results, games: int) -> pathlib.Path:
    """Win rates of all methods, and win, tie and loss of the actor-critic, a panel per opponent: curves.png.

    A method that was not trained ("before" is {}) is a level line.

    Args:
      games: per iteration, where a run did not count them.
    """
    panels: dict[str, list[Series]] = {}
    for (opponent, method), result in results.items():
        wins, shares = (panels.setdefault(f"{opponent}: {title}", []) for title in ("win rate", "actor-critic"))
        if result["before"]:
            run = read_metrics(run_dir / opponent / method)
            played = np.append(0, np.cumsum(run.get("games", np.full(len(run["iteration"]), games))))
            lines = [metric_line([run], f"eval/{name}", name, result["before"][name]) for name in OUTCOMES]
            lines = [line._replace(x=played[line.x], points=False) for line in lines]
            wins.append(lines[0]._replace(label=method))
            shares += lines if method == "actor-critic" else []
    for opponent in dict.fromkeys(opponent for opponent, _ in results):
        wins = panels[f"{opponent}: win rate"]
        levels = {"the model as prompted": float(wins[0].ys[0, 0])}
        levels |= {m: r["after"]["win"] for (name, m), r in results.items() if name == opponent and not r["before"]}
        wins += [Series(name, wins[0].x, np.full((1, len(wins[0].x)), rate)) for name, rate in levels.items()]
    return compare(panels, run_dir / "curves.png", "games played", "share of greedy games")


def measurements(results: Results) -> Measurements:
    """The tidy rows of a run: methods by opponent, a single training each."""
    rows = []
    for (opponent, method), result in results.items():
        before, after = result["before"], result["after"]
        shares = {"win before": before.get("win", after["win"])}
        shares |= {f"{name} after": after[name] for name in OUTCOMES}
        shares["random moves"] = after.get("random_moves", 0.0)
        rows += [Measurement(f"{method} against {opponent}", 0, name, value) for name, value in shares.items()]
    return Measurements(rows)


def write(
    run_dir: pathlib.Path,
    config: Mapping[str, Any],
    results: Results,
    exchanges: Sequence[Exchange],
    usage: Usage,
) -> pathlib.Path:
    """The page of a finished run."""
    numbers = measurements(results)
    numbers.write(run_dir)
    rows = numbers.table({metric: Column(metric, ".4g", interval=False) for metric in numbers.metrics}, "method")
    trained = next((name for name in numbers.methods if name.startswith("actor-critic")), "")
    curve = "Greedy games before and during training; level lines were not trained. Left: every method. Right: how the "
    return write_report(
        run_dir,
        title=f"Natural-language actor-critic: {model_name(config['model'])} on tic-tac-toe",
        question="Does a policy that learns from written evaluations win more games than before, and than PPO?",
        config=config,
        blocks=[
            Table("Results", rows, "Random moves: share of moves taken at random because a reply named no legal one."),
            Picture(draw(run_dir, results, config["games"]), f"{curve}actor-critic's games end."),
            tokens(usage),
            Exchanges(exchanges),
        ],
        headline=numbers.headline("win after", trained, []) if trained else "",
    )
