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

import itertools
import os
import pathlib

from absl import flags

from nlrl_jax.run import app
from nlrl_jax.run.compared_runs import groups_of, is_group, read_run
from nlrl_jax.run.directory import output_file
from nlrl_jax.run.report import markdown
from nlrl_jax.run.reports import comparison
from nlrl_jax.run.reports.comparison import QUESTIONS, rounds_picture


def page_of(name: str | pathlib.Path) -> pathlib.Path:
    """The page to write, with a picture beside it.

    Raises:
      ValueError: no .html file, it cannot be written, or it or the picture is there and not an earlier comparison.
    """
    out = pathlib.Path(os.path.expanduser(name))
    output_file("out", out)
    if out.suffix != ".html":
        raise ValueError(f"--out is {out}; the page is an .html file, such as runs/comparison.html")
    is_ours = out.is_file() and any(question in out.read_text(errors="replace") for question in QUESTIONS)
    existing = [path for path in (out, out.with_suffix(".png"), rounds_picture(out)) if path.exists()]
    if existing and not is_ours:
        raise ValueError(f"{existing[0]} exists and is not an earlier comparison; choose another --out")
    return out


def main(argv: list[str]) -> None:
    names = argv[1:]
    if not names or not all(names):
        raise ValueError("name the runs: nlrl-jax compare runs/a runs/b")
    groups, titled = groups_of(names), is_group(names[0])
    for folder in itertools.chain.from_iterable(groups.values()):
        read_run(folder)  # a damaged one is refused before a page is touched
    folder = next(iter(groups.values()))[0] if titled else pathlib.Path(names[0])
    out = page_of(flags.FLAGS.out or folder / "comparison.html")
    out.parent.mkdir(parents=True, exist_ok=True)
    tables, (page, *pictures) = comparison.write(groups, out, titled, flags.FLAGS.against == "seconds")
    for table in (table for table in tables[:-1] if table.rows):  # of LAC's loop, and without learning
        print(f"{table.title}. {table.note}\n\n{markdown(table.rows)}")
    print("\n".join([f"report: {page}", *(f"picture: {path}" for path in pictures)]))


def define_flags() -> None:
    flags.DEFINE_string("out", "", "the page to write; default: comparison.html in the first run's folder")
    axes = ["iterations", "seconds"]
    flags.DEFINE_enum("against", "iterations", axes, "what curves are drawn against; seconds: of training")


if __name__ == "__main__":
    define_flags()
    app.run(main, takes_names=True)
