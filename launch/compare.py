"""Compares runs on one page: results, curves and episodes side by side, and the settings in which the runs differ.

    nlrl-jax compare runs/a runs/b --out runs/comparison.html
    nlrl-jax compare runs/a                      # writes runs/a/comparison.html
    nlrl-jax compare LAC=runs/lac_3,runs/lac_4 own=runs/own_3,runs/own_4 --out runs/loop.html

Reads what every training script writes (config.json, metrics.jsonl, results.json) and trains nothing; a run that is
still going has metrics only, which is enough. Each part of a run (a folder below it with metrics or results) counts as
a run of its own. TITLE=A,B,C are the seeds of one setting, a folder each; several seeds are drawn as their mean and
its 95 % interval. Groups of iterate_lac also get a table by round and a curve over the tokens spent.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np
from absl import flags

from nlrl_jax.run import app
from nlrl_jax.run.directory import holds_run, output_file, read_config
from nlrl_jax.run.metrics import METRICS, read_metrics
from nlrl_jax.run.plots import compare
from nlrl_jax.run.report import Episodes, Picture, Table, markdown, write_report
from nlrl_jax.run.reports import lac_seeds
from nlrl_jax.run.reports.comparison import curves, labels, summary
from nlrl_jax.run.results import RESULTS, read
from nlrl_jax.statistics import header

QUESTIONS = ("How did this run end?", "How do these runs differ, and how did they end?")  # of one run, of several


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

    Folders may have "=" and "," in their names: what exists counts.

    Raises:
      ValueError: a title or a folder of a group comes twice.
    """
    groups: dict[str, list[pathlib.Path]] = {}
    for name in names:
        if not _is_group(name):
            groups |= {str(part): [part] for part in parts_of(pathlib.Path(os.path.expanduser(name)))}
            continue
        signs = [i for i, character in enumerate(name) if character == "="]
        splits = [(name[:i], _listed(name[i + 1 :])) for i in signs]
        title, folders = next((split for split in splits if all(map(os.path.exists, split[1]))), splits[-1])
        if title in groups or len(set(folders)) < len(folders):
            raise ValueError(f"{name} names a group or a folder twice; a seed counts once")
        groups[title] = folders
    return groups


def _is_group(name: str) -> bool:
    return "=" in name and not os.path.exists(os.path.expanduser(name))


def _listed(text: str) -> list[pathlib.Path]:
    """The folders of a list with commas between them; a folder's own commas stay where it exists."""
    commas = [i for i, character in enumerate(text) if character == ","]
    for end in (len(text), *reversed(commas)):
        if os.path.exists(os.path.expanduser(text[:end])):
            rest = text[end + 1 :]
            return [pathlib.Path(os.path.expanduser(text[:end])), *(_listed(rest) if rest else [])]
    first, comma, rest = text.partition(",")
    return [pathlib.Path(os.path.expanduser(first)), *(_listed(rest) if comma else [])]


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


def page_of(name: str | pathlib.Path) -> pathlib.Path:
    """The page to write, with a picture beside it.

    Raises:
      ValueError: no .html file, it cannot be written, or it or the picture is there and not an earlier comparison.
    """
    out = pathlib.Path(os.path.expanduser(name))
    output_file("out", out)
    if out.suffix != ".html":
        raise ValueError(f"--out is {out}; the page is an .html file, such as runs/comparison.html")
    own = out.is_file() and any(question in out.read_text(errors="replace") for question in QUESTIONS)
    there = [path for path in (out, out.with_suffix(".png"), rounds_of(out)) if path.exists()]
    if there and not own:
        raise ValueError(f"{there[0]} exists and is not an earlier comparison; choose another --out")
    return out


def rounds_of(out: pathlib.Path) -> pathlib.Path:
    """The picture of LAC's loop beside a page."""
    return out.with_name(f"{out.stem}_rounds.png")


def main(argv: list[str]) -> None:
    if len(argv) < 2 or not all(argv):
        raise ValueError("name the runs: nlrl-jax compare runs/a runs/b")
    groups = groups_of(argv[1:])
    runs = [read_group(title, folders) for title, folders in groups.items()]
    titled = _is_group(argv[1])
    beside = groups[runs[0]["name"]][0] if titled else pathlib.Path(argv[1])
    out = page_of(flags.FLAGS.out or beside / "comparison.html")
    out.parent.mkdir(parents=True, exist_ok=True)
    panels, flat = curves(runs)
    pictures = [compare(panels, out.with_suffix(".png"), "iteration", "", errors=True)] if panels else []
    rows, hidden = summary(runs)
    alone = len(runs) == 1
    (left, old), (right, new) = ((runs[0], "before"), (runs[0], "after")) if alone else zip(runs[:2], ("after",) * 2)
    episodes = lambda run, when: run["results"].get("transcripts", {}).get(when, [])
    shown = labels([run["name"] for run in runs])
    compared = " and ".join(shown) if len(runs) < 4 else f"{len(runs)} runs"
    title = f"{runs[0]['name']}: before and after" if alone else f"{compared} compared"
    games = {run["config"].get("game", "") for run in runs}
    title += f" on {games.pop()}" if len(games) == 1 and any(games) else ""
    names = ("before", "after") if alone else (shown[0], shown[1])
    notes = [
        f"{header('the seeds of a run')} Metrics without an arrow are means over the last tenth of the run. The "
        f"configuration below is that of {runs[0]['name']}.",
        *([f"Constant in all runs, so not drawn: {', '.join(flat)}."] if flat else []),
        *([f"Not shown: {'; '.join(hidden)}."] if hidden else []),
    ]
    loops = titled and all(lac_seeds.SUCCESS in run["results"].get("rounds", [()])[0] for run in runs)
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
            *(
                Picture(path, "Running means of metrics by iteration; bands: 95 % intervals of the mean over seeds.")
                for path in pictures
            ),
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
