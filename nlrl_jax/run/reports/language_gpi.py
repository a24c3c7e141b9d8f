"""Language GPI in mazes: the rows of Table 1, the table, the figure and the page."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.algorithms import language_gpi as gpi
from nlrl_jax.backends.usage import Usage
from nlrl_jax.files import write_atomically
from nlrl_jax.roles.gpi import GPIRoles
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.report import Episodes, Picture, Table, markdown, tokens, write_report
from nlrl_jax.statistics import Estimate, deviation, estimate, header
from nlrl_jax.types import LanguageModel, Sampling

# {maze: {row: what `run_language_gpi.play` returned}}
Results = dict[str, dict[str, dict[str, Any]]]

TABLE_1 = ("policy", "q", "1x3", "4x1", "4x3", "6x3", "8x3")  # the paper's rows


class Row(NamedTuple):
    """A row of Table 1. name: "policy", "q" or "KxN"; K and N are 0 for the first two."""

    name: str
    K: int = 0
    N: int = 0

    @classmethod
    def of(cls, name: str) -> Row:
        """Raises ValueError for a name that is none."""
        if name in ("policy", "q"):
            return cls(name)
        K, cross, N = name.partition("x")
        if not (cross and K.isdecimal() and N.isdecimal() and int(K)):
            raise ValueError(f"--rows has {name!r}; a row is policy, q or KxN such as 4x3")
        return cls(name, int(K), int(N))

    @property
    def title(self) -> str:
        titles = {"policy": "language policy alone", "q": "Q^L without look-ahead + I"}
        return titles.get(self.name, f"language GPI, K={self.K}, N={self.N}")

    def decide(self, model: LanguageModel, roles: GPIRoles, states, sampling: Sampling, seed: int) -> gpi.Decisions:
        """An action for each state."""
        if self.name == "policy":
            return gpi.policy_alone(model, roles, states, sampling, seed)
        if self.name == "q":
            return gpi.value_and_improve(model, roles, states, sampling, seed)
        return gpi.language_gpi(model, roles, states, gpi.GPIConfig(self.N, self.K, sampling), seed)


def summarize(result: dict[str, Any]) -> dict[str, float]:
    """The numbers of a row: return and its deviation over seeds, share of solved mazes, steps, calls, problems."""
    means = np.mean(result["returns"], axis=1)
    summary = {
        "return": float(means.mean()),
        "return_std": float(deviation(means)),
        "solved": float(np.mean(result["solved"])),
        "steps": float(np.mean(result["steps"])),
    }
    calls = {f"calls/{role}": float(count) for role, count in result["calls"].items()}
    return summary | calls | {f"problems/{name}": float(count) for name, count in result["problems"].items()}


def mean_return(result: dict[str, Any]) -> Estimate:
    """Over the seeds of play, which share their starts."""
    return estimate(np.mean(result["returns"], axis=1))


def table(results: Results) -> list[dict[str, Any]]:
    """Table 1, a row per method."""
    rows = []
    for name in dict.fromkeys(name for rows in results.values() for name in rows):
        line: dict[str, Any] = {"": Row.of(name).title}
        for maze, finished in results.items():
            summary = summarize(finished[name])
            line[f"return {maze}"] = str(mean_return(finished[name]))
            line[f"solved {maze}"] = f"{summary['solved']:.0%}"
            line[f"unreadable {maze}"] = sum(
                v for k, v in finished[name]["problems"].items() if not k.endswith((gpi.RANDOM, gpi.NEVER_ENDED))
            )
        rows.append(line)
    return rows


def explained(results: Results) -> str:
    """Explains the table's numbers."""
    return f"Mean return over the starts. {header('seeds of play', _seeds(results))}"


def _seeds(results: Results) -> int:
    return len(next(iter(next(iter(results.values())).values()))["returns"])


def figure(results: Results, path: pathlib.Path) -> pathlib.Path:
    """Return against K, a line per N; the rows without look-ahead as level lines. Bands: deviation over seeds."""
    wide = lambda x: (min(x), max(x)) if len(set(x)) > 1 else (x[0] - 0.2, x[0] + 0.2)  # a point would be invisible
    panels = {}
    for maze, finished in results.items():
        rows = [Row.of(name) for name in finished]
        means = {row: np.mean(finished[row.name]["returns"], axis=1) for row in rows}
        across = wide([row.K for row in rows if row.K] or [1])
        panel = [Series(row.title, across, np.repeat(means[row][:, None], 2, axis=1)) for row in rows if not row.K]
        for N in sorted({row.N for row in rows if row.K}):
            line = sorted((row for row in rows if row.K and row.N == N), key=lambda row: row.K)
            x, ys = [row.K for row in line], np.stack([means[row] for row in line], axis=1)
            if len(line) == 1:
                x, ys = wide(x), np.repeat(ys, 2, axis=1)
            panel.append(Series(f"GPI, N={N}", x, ys))
        panels[maze] = panel
    return compare(panels, path, "variations of each action [K]", "mean return")


def first_and_last(names: Sequence[str]) -> tuple[str, str]:
    """The rows to compare: the policy alone if it was run, and the look-ahead with the most variations and steps."""
    last = max(names, key=lambda name: Row.of(name)[1:])
    return ("policy" if "policy" in names else next(iter(names))), last


def write(run_dir: pathlib.Path, model: str, config: Mapping[str, Any], results: Results, usage: Usage) -> pathlib.Path:
    """table.md, the figure and the page."""
    rows = table(results)
    write_atomically(run_dir / "table.md", f"{explained(results)}\n\n{markdown(rows)}")
    ends = {maze: first_and_last(list(finished)) for maze, finished in results.items()}
    problems = Counter()
    for result in (result for finished in results.values() for result in finished.values()):
        problems.update(result["problems"])
    unreadable = [{"problem": name, "times": count} for name, count in sorted(problems.items())]
    caption = "Mean return over the starts for each number of variations"
    if _seeds(results) > 1:
        caption += "; bands are one standard deviation, dashed lines the best seed"
    return write_report(
        run_dir,
        title=f"Language GPI by prompting: {model} in the mazes {' and '.join(results)}",
        question="What do look-ahead and written evaluations add to a prompted policy?",
        config=config,
        blocks=[
            Table("Results", rows, explained(results)),
            Picture(figure(results, run_dir / "return_against_k.png"), caption),
            Table("Problems with replies", unreadable, "An action that cannot be read is replaced by a random one."),
            tokens(usage),
            Episodes(
                [results[maze][first]["episode"] for maze, (first, _) in ends.items()],
                [results[maze][last]["episode"] for maze, (_, last) in ends.items()],
                ("policy alone", "language GPI"),
            ),
        ],
        headline=headline(results),
    )


def headline(results: Results) -> str:
    """The return in the first maze with the most look-ahead, and that of the policy alone; "" of a single row."""
    maze, finished = next(iter(results.items()))
    first, last = first_and_last(list(finished))
    if first == last:
        return ""
    old, new = (mean_return(finished[name]).mean for name in (first, last))
    return f"return in {maze}: {new:.2f} with {Row.of(last).title}, {old:.2f} with {Row.of(first).title}"
