"""What an ablation shows: of a setting's finished runs a line of its picture and a row of its table, and the page."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nlrl_jax.files import write_atomically
from nlrl_jax.run import loop
from nlrl_jax.run.metrics import TIMINGS, evaluations_of_seeds, read_metrics
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.report import Picture, Table, markdown, write_report
from nlrl_jax.run.reports import ultra_tables
from nlrl_jax.run.ultra.stages import Run, stored_scores
from nlrl_jax.statistics import estimate


def in_seconds(label: str, folder: pathlib.Path, game: str, result: dict[str, Any]) -> tuple[Series, dict[str, str]]:
    """(reward against seconds of wall time without compilation, a row of the table) of MS-GRPO's seeds."""
    folders = loop.seed_dirs(folder, result["seeds"])
    start, final = result["before"][game], np.array(result["after"][game])
    done, ys = evaluations_of_seeds(folders, f"eval/{game}", [start] * len(folders))
    without_evaluation = np.delete(read_metrics(folders[0], TIMINGS)["seconds"], done[1:] - 1)
    pace = float(np.median(without_evaluation)) / len(folders)  # an iteration trains all seeds
    row = {"start": f"{start:.3f}", "final": over_seeds(final), "best of a run": over_seeds(ys.max(axis=1))}
    row |= {"worst": f"{final.min():.3f}", "best": f"{final.max():.3f}"}
    row |= {"seeds": str(len(final)), "s/iteration": f"{pace:.3f}"}
    return Series(label, pace * done, ys), row


def in_iterations(
    label: str, folders: Sequence[pathlib.Path], metric: str, stored: Sequence[dict[str, Any]]
) -> tuple[Series, dict[str, str]]:
    """(the metric against iterations, a row of the table) of NLRL's runs under several seeds.

    The last accuracy is also that at the authors' threshold, as the runs kept it.
    """
    done, ys = evaluations_of_seeds(folders, f"eval/{metric}", [one["before"][metric] for one in stored])
    numbers = {"start": ys[:, 0], "first": ys[:, 1], "final": ys[:, -1], "best": ys.max(axis=1)}
    numbers |= {"final - first": ys[:, -1] - ys[:, 1]}
    for name in ("accuracy_0.2", "answered", "answered_0.2"):
        numbers |= {name: [one["after"][name] for one in stored]} if name in stored[0]["after"] else {}
    row = {name: over_seeds(values) for name, values in numbers.items()} | {"seeds": str(len(stored))}
    row["seconds a run"] = f"{np.mean([read_metrics(folder, TIMINGS)['seconds'].sum() for folder in folders]):.0f}"
    return Series(label, done, ys), row


def in_updates(label: str, runs: Sequence[Run]) -> tuple[Series, dict[str, str]]:
    """(ULTRA-RA's score against updates, a row of the table) of all base agents and seeds."""
    continuous = runs[0].agent.continuous
    kind = ultra_tables.main_score(continuous)
    started = [run.before_learning()[0][kind] for run in runs for _ in run.seeds]
    folders = [folder for run in runs for folder in loop.seed_dirs(run.folder / "ULTRA-RA", run.seeds)]
    scores = {name: scores[kind] for name, scores in stored_scores(runs).items()}
    row = {name: ultra_tables.level(scores[name]) for name in ("PPO", "ULTRA-RA")}
    row["gain"] = ultra_tables.gain_text(ultra_tables.gain(scores["ULTRA-RA"], scores["PPO"]))
    series = Series(label, *evaluations_of_seeds(folders, f"eval/{kind}", started))
    return series, {"score": ultra_tables.headings(continuous)[kind], **row}


def write(
    run_dir: pathlib.Path,
    title: str,
    config: Mapping[str, Any],
    tables: Sequence[Table],
    panels: dict[str, list[Series]],
    axes: tuple[str, str],
    errors: bool,
) -> None:
    """Writes table.md, ablation.png and the page, and prints the tables and where the others are.

    Args:
      axes: labels of x and y. errors: bands are 95 % intervals, otherwise one standard deviation.
    """
    text = "\n".join(f"{table.note}\n\n{markdown(table.rows)}" for table in tables)
    write_atomically(run_dir / "table.md", text)
    picture = compare(panels, run_dir / "ablation.png", *axes, errors)
    bands = "95 % intervals" if errors else "one standard deviation; dashed: the best run"
    shown = Picture(picture, f"One line per setting. Bands: {bands}.")
    question = "What does each choice change?"
    report = write_report(run_dir, title=title, question=question, config=config, blocks=[*tables, shown])
    print(f"\n{text}\npicture: {picture}\nreport:  {report}")


def over_seeds(values: Sequence[float]) -> str:
    """The mean over seeds, with its ±."""
    return estimate(values).text(".3f")


def beside(folders: Mapping[str, Sequence[dict[str, Any]]]) -> list[dict[str, str]]:
    """Rows of the baselines of language TD that do not learn, from the runs of one setting per set of positions."""
    rows = []
    for label, stored in folders.items():
        for name in stored[0].get("beside", {}):
            columns = ("accuracy", "answered", "accuracy_0.2", "answered_0.2")
            there = [column for column in columns if column in stored[0]["beside"][name]]
            values = {column: over_seeds([one["beside"][name][column] for one in stored]) for column in there}
            row = {"who": name, **values, "seeds": str(len(stored))}
            if not any(row.items() <= other.items() for other in rows):  # of another setting with the same positions
                rows.append({"positions of": label, **row})
    return rows
