"""Compares runs on one page: results, curves and episodes side by side, and the settings in which the runs differ.

    python -m launch.compare runs/a runs/b --out runs/comparison.html
    python -m launch.compare runs/a                      # writes runs/a/comparison.html
    python -m launch.compare LAC=runs/lac_3,runs/lac_4 own=runs/own_3,runs/own_4 --out runs/loop.html

Reads what every training script writes (config.json, metrics.jsonl, results.json) and trains nothing; a run that is
still going has metrics only, which is enough. Each part of a run (a folder below it with metrics or results) counts as
a run of its own. TITLE=A,B,C are the seeds of one setting, a folder each; several seeds are drawn as their mean and a
band of one standard deviation. Groups of iterate_lac also get a table by round and a curve over the tokens spent.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
from absl import flags

from nlrl_jax.run import app
from nlrl_jax.run.directory import holds_run, output_file, read_config
from nlrl_jax.run.metrics import METRICS, read_metrics
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.report import Episodes, Picture, Table, distinct, markdown, number, write_report
from nlrl_jax.run.reports import lac_seeds
from nlrl_jax.run.results import RESULTS, read
from nlrl_jax.statistics import estimate, header

SHOWN = ("return", "success", "env_return", "kl", "loss")  # and all evaluations
LAST = 0.1  # share of the run that a final value is the mean of
QUESTIONS = ("How did this run end?", "How do these runs differ, and how did they end?")  # of one run, of several
WIDE = 6  # a table with more columns has a column per run instead of a row


def parts_of(folder: pathlib.Path) -> list[pathlib.Path]:
    """The run's folder if it holds metrics, else every folder in it with metrics (or `seed_*` that have) or results."""
    if (folder / METRICS).is_file():
        return [folder]
    paths = {path.parent for name in (METRICS, RESULTS) for path in folder.rglob(name)}
    return sorted({path.parent if path.match("seed_*") else path for path in paths}) or [folder]


def read_run(run_dir: pathlib.Path) -> dict[str, Any]:
    """A run, or a part of one.

    Returns:
      "name", "config" (for a part that of the whole run), "metrics" (of every seed, over the iterations that all have
      done; [] if there are none) and "results" as `results.read` gives them, {} if there are none.

    Raises:
      ValueError: no run there, one with neither metrics nor results, or a damaged file.
    """
    whole = next((path for path in (run_dir, *run_dir.absolute().parents) if holds_run(path)), run_dir)
    config = read_config(whole)
    seeds = sorted(path.parent for path in run_dir.glob(f"seed_*/{METRICS}"))
    runs = [read_metrics(folder) for folder in seeds or [run_dir]]
    done = min(len(run["iteration"]) for run in runs)
    metrics = [{name: values[:done] for name, values in run.items()} for run in runs] if done else []
    stored = read(run_dir) if (run_dir / RESULTS).is_file() else {}
    if not metrics and not stored:
        raise ValueError(f"{run_dir} has no metrics yet")
    return {"name": str(run_dir), "config": config, "metrics": metrics, "results": stored}


def groups_of(names: list[str]) -> dict[str, list[pathlib.Path]]:
    """{title: the folders of its seeds} of TITLE=A,B,C; a part of any other run is a group by itself, under its path.

    Raises:
      ValueError: a title or a folder of a group comes twice.
    """
    groups: dict[str, list[pathlib.Path]] = {}
    for name in names:
        title, equals, listed = name.rpartition("=")
        if not equals or pathlib.Path(name).expanduser().exists():
            groups |= {str(part): [part] for part in parts_of(pathlib.Path(name).expanduser())}
            continue
        folders = [pathlib.Path(one).expanduser() for one in listed.split(",")]
        if title in groups or len(set(folders)) < len(folders):
            raise ValueError(f"{name} names a group or a folder twice; a seed counts once")
        groups[title] = folders
    return groups


def read_group(title: str, folders: list[pathlib.Path]) -> dict[str, Any]:
    """The seeds of one setting as `read_run` gives one run; settings in which they differ are left out."""
    first, *others = runs = [read_run(folder) for folder in folders]
    if not others:
        return first | {"name": title}
    metrics = [seed for run in runs for seed in run["metrics"]]
    done = min((len(seed["iteration"]) for seed in metrics), default=0)
    results = dict(first["results"])
    for when in ("before", "after"):
        found = [run["results"].get(when, {}) for run in runs]
        shared = [name for name in found[0] if all(name in one for one in found)]
        results[when] = {name: np.concatenate([np.ravel(one[name]) for one in found]) for name in shared}
    equal = lambda name: all(run["config"].get(name) == first["config"][name] for run in others)
    return {
        "name": title,
        "config": {name: value for name, value in first["config"].items() if equal(name)},
        "metrics": [{name: values[:done] for name, values in seed.items()} for seed in metrics],
        "results": results,
    }


def labels(names: list[str]) -> list[str]:
    """The shortest ends of the paths that differ."""
    parts = [pathlib.Path(name).absolute().parts for name in names]
    short = lambda n: ["/".join(path[-n:]) for path in parts]
    different = len(set(parts))
    return next(short(n) for n in range(1, max(map(len, parts)) + 1) if len(set(short(n))) == different)


def table(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per run: the settings that differ, evaluations, the mean of each metric over the end of the run."""
    names = list(dict.fromkeys(name for run in runs for name in run["config"]))
    differing = [name for name in names if len({json.dumps(run["config"].get(name)) for run in runs}) > 1]
    rows = []
    for run, label in zip(runs, labels([run["name"] for run in runs])):
        metrics, before, after = run["metrics"], *(run["results"].get(when, {}) for when in ("before", "after"))
        row = {"run": label} | {name: run["config"].get(name, "") for name in differing}
        if metrics:
            row["iterations done"] = int(metrics[0]["iteration"][-1]) + 1
        for name in sorted(dict.fromkeys([*before, *after]), key=lambda name: name != "success"):
            ends = [_spread(np.ravel(evaluation[name])) for evaluation in (before, after) if name in evaluation]
            row[f"{_metric(name)} (before → after)"] = " → ".join(ends)
        row |= {name: _final([seed[name] for seed in metrics]) for name in _shown(run)}
        rows.append(row)
    return rows


def _metric(name: str) -> str:
    """The name without the prefix that metrics.jsonl gives evaluations."""
    return name.removeprefix("eval/")


def _shown(run: dict[str, Any]) -> list[str]:
    """The metrics of the page that a run has; the combinations of a sweep are too many for it."""
    every = set.intersection(*map(set, run["metrics"])) if run["metrics"] else set()
    evaluations = sorted(name for name in every if name.startswith("eval/") and "=" not in name)
    return [name for name in (*SHOWN, *evaluations) if name in every]


def _final(seeds: list[np.ndarray]) -> str:
    """The mean of the end, over seeds."""
    ends = []
    for values in seeds:
        there = values[np.isfinite(values)]
        ends.append(there[-max(1, round(LAST * len(there))) :].mean() if len(there) else np.nan)
    return _spread(np.array(ends))


def _spread(values: np.ndarray) -> str:
    return estimate(values).text(".4g", ".2g") if len(values) > 1 else number(float(values[0]))


def curves(runs: list[dict[str, Any]]) -> tuple[dict[str, list[Series]], list[str]]:
    """(a panel per metric with a line per run, the metrics left out because they have one value in all runs)."""
    panels: dict[str, list[Series]] = {}
    for run, label in zip(runs, labels([run["name"] for run in runs])):
        before = {_metric(name): value for name, value in run["results"].get("before", {}).items()}
        for name in _shown(run):
            ys = np.array([seed[name] for seed in run["metrics"]])
            there = np.isfinite(ys).all(axis=0)
            x, ys = run["metrics"][0]["iteration"][there] + 1, ys[:, there]
            if name.startswith("eval/") and _metric(name) in before:
                start = np.broadcast_to(before[_metric(name)], len(ys))
                x, ys = np.concatenate([[0], x]), np.concatenate([start[:, None], ys], axis=1)
            if len(x):
                panels.setdefault(name, []).append(Series(label, x, ys))
    values = {name: np.concatenate([line.ys.ravel() for line in lines]) for name, lines in panels.items()}
    flat = [name for name in panels if np.ptp(values[name]) == 0]
    return {name: lines for name, lines in panels.items() if name not in flat}, flat


def summary(runs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """(the table without metrics that are 0 or repeat another, transposed if wide; sentences about these metrics)."""
    rows = table(runs)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    settings = {"run", "iterations done"}.union(*(run["config"] for run in runs))
    metrics, hidden = distinct({n: [row.get(n, "") for row in rows] for n in columns if n not in settings})
    visible = [name for name in columns if name in settings or name in metrics]
    if len(visible) <= max(WIDE, len(rows)):
        return [{name: row.get(name, "") for name in visible} for row in rows], hidden
    return [{"": name} | {row["run"]: row.get(name, "") for row in rows} for name in visible if name != "run"], hidden


def page_of(name: str | pathlib.Path) -> pathlib.Path:
    """The page to write, with a picture beside it.

    Raises:
      ValueError: no .html file, it cannot be written, or it or the picture is there and not an earlier comparison.
    """
    out = pathlib.Path(name).expanduser()
    output_file("out", out)
    if out.suffix != ".html":
        raise ValueError(f"--out is {out}; the page is an .html file, such as runs/comparison.html")
    own = out.is_file() and any(question in out.read_text(errors="replace") for question in QUESTIONS)
    there = [path for path in (out, out.with_suffix(".png"), rounds_of(out)) if path.exists()]
    if there and not own:
        raise ValueError(f"{there[0]} is there and no earlier comparison; choose another --out")
    return out


def rounds_of(out: pathlib.Path) -> pathlib.Path:
    """The picture of LAC's loop beside a page."""
    return out.with_name(f"{out.stem}_rounds.png")


def main(argv: list[str]) -> None:
    if len(argv) < 2 or not all(argv):
        raise ValueError("name the runs: python -m launch.compare runs/a runs/b")
    groups = groups_of(argv[1:])
    runs = [read_group(title, folders) for title, folders in groups.items()]
    titled = argv[1].rpartition("=")[0] in groups
    out = page_of(
        flags.FLAGS.out or (groups[runs[0]["name"]][0] if titled else pathlib.Path(argv[1])) / "comparison.html"
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    panels, flat = curves(runs)
    pictures = [compare(panels, out.with_suffix(".png"), "iteration", "")] if panels else []
    rows, hidden = summary(runs)
    alone = len(runs) == 1
    (left, old), (right, new) = ((runs[0], "before"), (runs[0], "after")) if alone else zip(runs[:2], ("after",) * 2)
    episodes = lambda run, when: run["results"].get("transcripts", {}).get(when, [])
    shown = labels([run["name"] for run in runs])
    compared = " and ".join(shown) if len(runs) < 4 else f"{len(runs)} runs"
    title = f"{runs[0]['name']}: before and after" if alone else f"{compared} compared"
    names = ("before", "after") if alone else (shown[0], shown[1])
    notes = [
        f"{header('the seeds of a run')} Metrics without an arrow are means over the last tenth of the run. The "
        f"configuration below is that of {runs[0]['name']}.",
        *([f"Constant in all runs, so not drawn: {', '.join(flat)}."] if flat else []),
        *([f"Not shown: {'; '.join(hidden)}."] if hidden else []),
    ]
    loops = titled and all(run["results"].get("script") == "iterate_lac" for run in runs)
    rounds = lac_seeds.blocks(groups, rounds_of(out)) if loops else []
    for block in rounds:
        if isinstance(block, Table):
            print(f"{block.title}. {block.note}\n\n{markdown(block.rows)}")
    page = write_report(
        out.parent,
        title=title,
        question=QUESTIONS[not alone],
        config=runs[0]["config"],
        blocks=[
            *rounds,
            Table("Results", rows, " ".join(notes)),
            *(Picture(path, "Metrics by iteration; bands are one deviation over seeds.") for path in pictures),
            Episodes(episodes(left, old), episodes(right, new), names),
        ],
        legend=left["results"].get("legend", {}),
        name=out.name,
    )
    print("\n".join([f"report: {page}", *(f"picture: {path}" for path in pictures)]))


def define_flags() -> None:
    flags.DEFINE_string("out", "", "the page to write; default: comparison.html in the first run's folder")


if __name__ == "__main__":
    define_flags()
    app.run(main, takes_names=True)
