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
from nlrl_jax.run.report import EpisodePairs, Picture, Table, markdown, tokens, write_report
from nlrl_jax.run.reports.tidy import Column, Measurement, Measurements
from nlrl_jax.statistics import Estimate, deviation, estimate, header
from nlrl_jax.types import LanguageModel, Sampling

# {maze: {row: what `run_language_gpi.play` returned}}
Results = dict[str, dict[str, dict[str, Any]]]

TABLE_1 = ("policy", "q", "1x3", "4x1", "4x3", "6x3", "8x3")  # the paper's rows


class GPIMethod(NamedTuple):
    """A row of Table 1. name: "policy", "q" or "KxN"; K and N are 0 for the first two."""

    name: str
    K: int = 0
    N: int = 0

    @classmethod
    def of(cls, name: str) -> GPIMethod:
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

    def decide(self, model: LanguageModel, roles: GPIRoles, states, sampling: Sampling, seed: int) -> gpi.GPIDecisions:
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


def measurements(results: Results) -> Measurements:
    """The tidy rows of a run: methods are the table's rows, units the seeds of play."""
    rows = []
    for maze, finished in results.items():
        for name, result in finished.items():
            for seed, returns in enumerate(result["returns"]):
                rows.append(Measurement(name, seed, f"return {maze}", float(np.mean(returns))))
                rows.append(Measurement(name, seed, f"solved {maze}", float(np.mean(result["solved"][seed]))))
            problems = result["problems"].items()
            unreadable = [count for kind, count in problems if not kind.endswith((gpi.RANDOM, gpi.NEVER_ENDED))]
            rows.append(Measurement(name, "all", f"unreadable {maze}", sum(unreadable)))
    return Measurements(rows, title=lambda name: GPIMethod.of(name).title)


def table(results: Results) -> list[dict[str, Any]]:
    """Table 1, a row per method."""
    columns: dict[str, Column] = {}
    for maze in results:
        columns[f"return {maze}"] = Column(f"return {maze}")
        columns[f"solved {maze}"] = Column(f"solved {maze}", ".0%", interval=False)
        columns[f"unreadable {maze}"] = Column(f"unreadable {maze}", ".0f", interval=False)
    return measurements(results).table(columns)


def explained(results: Results) -> str:
    """Explains the table's numbers."""
    first = next(iter(next(iter(results.values())).values()))
    return f"Mean return over the starts. {header('seeds of play', len(first['returns']))}"


def figure(results: Results, path: pathlib.Path) -> pathlib.Path:
    """Return against K, a line per N; the rows without look-ahead as level lines. Bands: deviation over seeds."""
    panels = {}
    for maze, finished in results.items():
        means = {GPIMethod.of(name): np.mean(result["returns"], axis=1) for name, result in finished.items()}
        ahead = sorted((row for row in means if row.K), key=lambda row: row.K)
        span = [ahead[0].K, ahead[-1].K] if ahead else [0, 1]
        alone = {row.title: np.stack([values] * 2, axis=1) for row, values in means.items() if not row.K}
        panels[maze] = [Series(title, span, ys, points=True) for title, ys in alone.items()]
        for N in sorted({row.N for row in ahead}):
            rows = [row for row in ahead if row.N == N]
            ys = np.stack([means[row] for row in rows], axis=1)
            panels[maze].append(Series(f"GPI, N={N}", [row.K for row in rows], ys, points=True))
    return compare(panels, path, "variations of each action [K]", "mean return")


def first_and_last(names: Sequence[str]) -> tuple[str, str]:
    """The rows to compare: the policy alone if it was run, and the look-ahead with the most variations and steps."""
    last = max(names, key=lambda name: GPIMethod.of(name)[1:])
    return ("policy" if "policy" in names else next(iter(names))), last


def write(run_dir: pathlib.Path, model: str, config: Mapping[str, Any], results: Results, usage: Usage) -> pathlib.Path:
    """table.md, the figure and the page."""
    rows, numbers = table(results), measurements(results)
    numbers.write(run_dir)
    write_atomically(run_dir / "table.md", f"{explained(results)}\n\n{markdown(rows)}")
    compared = {maze: first_and_last(list(finished)) for maze, finished in results.items()}
    problems = Counter()
    for result in (result for finished in results.values() for result in finished.values()):
        problems.update(result["problems"])
    unreadable = [{"problem": name, "times": count} for name, count in sorted(problems.items())]
    maze, (first, last) = next(iter(compared.items()))
    return write_report(
        run_dir,
        title=f"Language GPI by prompting: {model} in the mazes {' and '.join(results)}",
        question="What do look-ahead and written evaluations add to a prompted policy?",
        config=config,
        blocks=[
            Table("Results", rows, explained(results)),
            Picture(
                figure(results, run_dir / "return_against_k.png"),
                "Mean return over the starts for each number of variations; with several seeds, bands are one standard "
                "deviation, dashed lines the best seed.",
            ),
            Table("Problems with replies", unreadable, "An action that cannot be read is replaced by a random one."),
            tokens(usage),
            EpisodePairs(
                [results[maze][first]["episode"] for maze, (first, _) in compared.items()],
                [results[maze][last]["episode"] for maze, (_, last) in compared.items()],
                ("policy alone", "language GPI"),
            ),
        ],
        headline=numbers.headline(f"return {maze}", last, [first]) if first != last else "",
    )
