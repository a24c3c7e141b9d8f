"""report.html of ULTRA: the tables, the curves, the case study (Figures 4 and 5) and an episode before and after.

The seeds of one base agent share that agent, so they are not independent trials of a method. A method is compared with
PPO on the same base agent and seed (the same new games and minibatches), these differences are averaged over the seeds,
and the interval is over the base agents' means. Where a run has a single base agent, it is over the seeds, and speaks
of this agent alone; with a single trial there is none.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.algorithms.analyst import CriticalState, Findings
from nlrl_jax.algorithms.refiners import methods as refiners
from nlrl_jax.backends.usage import Usage
from nlrl_jax.rollouts.control import Trajectories, episodes_of
from nlrl_jax.run import loop
from nlrl_jax.run.exchanges import Exchange, exchange
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.plots import compare, metric_line
from nlrl_jax.run.report import Exchanges, Picture, Table, tokens, write_report
from nlrl_jax.run.reports import ultra_pictures as pictures
from nlrl_jax.run.reports.tidy import Column, Measurement, Measurements
from nlrl_jax.run.reports.ultra_pictures import Case
from nlrl_jax.statistics import header
from nlrl_jax.types import ControlGame

CASES = 2  # episodes of the case study
LONGEST = 4000  # characters of a reply on the page
ALONE, GUIDED = "base agent", "base agent, guided"  # methods that learn nothing
TABLES = {"Variants and plain PPO": refiners.TABLE_1, "Refiners": refiners.TABLE_2}
# Shares of steps in critical states: a metric of a method with a lookup table -> its name in tables.
SHARES = {"critical": "critical", "replaced": "action replaced"}

# method -> score -> [bases, seeds]
Scores = Mapping[str, Mapping[str, np.ndarray]]


class Base(NamedTuple):
    """One base agent's part of a run.

    Attributes:
      folder: of its refinement. seeds: of its refinement.
      start, guided: its scores alone, and with the lookup table, before anything is learned.
    """

    folder: pathlib.Path
    seeds: Sequence[int]
    start: Mapping[str, float]
    guided: Mapping[str, float]

    def metrics(self, method: str) -> list[dict[str, np.ndarray]]:
        """The metrics of each seed of a method."""
        return [read_metrics(folder) for folder in loop.seed_dirs(self.folder / method, self.seeds)]


def headings(continuous: bool) -> dict[str, str]:
    """The scores' names in tables."""
    return {"greedy": "mean action" if continuous else "most likely action", "sampled": "sampled action"}


def main_score(continuous: bool) -> str:
    """The score by which methods are compared: robots by their mean action, without exploration noise, other games by
    the sampled one, as in the paper."""
    return "greedy" if continuous else "sampled"


@dataclasses.dataclass(frozen=True, eq=False)
class Refined:
    """All methods with all base agents.

    Attributes:
      scores: of each method.
      steps_per_update: environment steps.
      continuous: the actions.
      has_analyst: whether the base agents have a lookup table.
    """

    scores: Scores
    bases: Sequence[Base]
    steps_per_update: int
    continuous: bool
    has_analyst: bool = True

    @property
    def main(self) -> str:
        """The name of the score by which methods are compared."""
        return headings(self.continuous)[main_score(self.continuous)]

    @functools.cached_property
    def numbers(self) -> Measurements:
        """The tidy rows; a unit is a base agent, or a seed of a single base agent."""
        rows = []

        def add(method: str, metric: str, base: int, seed: int, value: float) -> None:
            rows.append(Measurement(method, base if len(self.bases) > 1 else seed, metric, float(value)))

        for number, base in enumerate(self.bases):
            for kind, metric in headings(self.continuous).items():
                add(ALONE, metric, number, 0, base.start[kind])
                if self.has_analyst:
                    add(GUIDED, metric, number, 0, base.guided[kind])
                for method, scores in self.scores.items():
                    for seed, score in enumerate(scores[kind][number]):
                        add(method, metric, number, seed, score)
            for method in self.scores:
                for seed, metrics in enumerate(base.metrics(method)):
                    for name, title in SHARES.items():
                        if name in metrics:
                            add(method, title, number, seed, np.mean(metrics[name]))
        return Measurements(rows)

    @property
    def over_ppo(self) -> Column:
        """The gain over continued PPO by the main score."""
        return Column(self.main, "", baseline="PPO")

    def tables(self) -> list[list[dict[str, str]]]:
        """Rows of the paper's tables 1 and 2, of what has finished; an empty table is left out.

        Table 1 ends with ULTRA-RA's gain over the mean of its baselines, which includes PPO, in percent as in the
        paper; there is none where a baseline is not above 0.
        """
        numbers, names = self.numbers, headings(self.continuous).values()
        scores = {name: Column(name, "") for name in names}
        columns = scores | ({"over PPO": self.over_ppo} if "PPO" in self.scores else {})
        tables = []
        for methods in TABLES.values():
            tables.append(numbers.table(columns, "method", [name for name in methods if name in self.scores]))
        tables[0] = numbers.table(scores, "method", [ALONE, GUIDED][: 1 + self.has_analyst]) + tables[0]
        baselines = [name for name in refiners.BASELINES if name in self.scores]
        if "ULTRA-RA" in self.scores and baselines:
            percent = {}
            for name in names:
                means = [numbers.mean(method, name).mean for method in baselines]
                if min(means) > 0:
                    percent[name] = f"{100 * (numbers.mean('ULTRA-RA', name).mean / np.mean(means) - 1):+.1f} %"
            if percent:
                tables[0].append({"method": f"ULTRA-RA over the mean of {', '.join(baselines)}", **percent})
        return [rows for rows in tables if rows]

    def last_line(self) -> str:
        """ULTRA-RA's gain over continued PPO, for the terminal; "" where one of them was not run."""
        if not {"PPO", "ULTRA-RA"} <= self.scores.keys():
            return ""
        score = Column(self.main, "", interval=False)
        ppo, ours = (self.numbers.cell(name, score) for name in ("PPO", "ULTRA-RA"))
        return f"ULTRA-RA over PPO: {ppo} -> {ours}, {self.numbers.cell('ULTRA-RA', self.over_ppo)}"

    @property
    def header(self) -> str:
        """What ± means in the tables."""
        bases, seeds = len(self.bases), len(self.bases[0].seeds)
        if bases > 1:
            return header("base agents, each the mean of its seeds", bases)
        return header("seeds of one base agent, so it speaks of this agent alone", seeds)


def write(
    folder: pathlib.Path,
    game: ControlGame,
    config: Mapping[str, Any],
    refined: Refined,
    trajectories: Trajectories,
    findings: Findings,
    films: Mapping[str, Trajectories],
) -> pathlib.Path:
    """Writes the page and its pictures into the run's folder.

    Args:
      config: flat, of `nlrl-jax reproduce_ultra`.
      trajectories: the episodes of the first base agent. findings: the analyst's, about them.
      films: label -> one episode, from the same start.
    """
    numbers = refined.numbers
    counts = [{"reply": name, "times": number} for name, number in sorted(findings.counts.items())]
    coverage = "with the first base agent" if len(refined.bases) > 1 else "all stages"
    shares = {name: Column(name, ".1%") for name in SHARES.values()}
    analyst = [
        Table("The analyst's replies", counts, f"A model that sees text only; {coverage}."),
        Table(
            "Steps in critical states",
            numbers.table(shares, "method", [name for name in numbers.methods if numbers.units(name, "critical")]),
            "Share of the steps of refinement.",
        ),
    ]
    drawn, exchanges = case_study(folder, game, trajectories, findings)
    numbers.write(folder)
    notes = explained(game.score, config, refined), ""
    return write_report(
        folder,
        title=f"ULTRA on {game.name}, analyst {config['analyst']}",
        question="Does an analyst's guidance on critical states help to refine a sub-optimal agent, and by how much?",
        config=config,
        blocks=[
            *map(Table, TABLES, refined.tables(), notes),
            Picture(
                curves(folder, refined, game.score),
                f"Score by {refined.main}; bands are one standard deviation, dashed lines the best run.",
            ),
            *(analyst if game.roles else ["The game has no prompts for an analyst, so none was asked."]),
            *drawn,
            *(filmed(folder, game, films) if game.draw else []),
            tokens(Usage(folder)),
            Exchanges(exchanges),
        ],
        headline=refined.last_line(),
    )


def case_study(
    folder: pathlib.Path, game: ControlGame, trajectories: Trajectories, findings: Findings
) -> tuple[list[Picture], list[Exchange]]:
    """(timelines of a few episodes, what the analyst wrote about them)."""
    words = game.roles.format_action if game.roles else str
    draw_case = game.draw_case or (game.draw and (lambda states, actions, suggested: game.draw(states)))
    drawn, exchanges = [], []
    for n, case in enumerate(cases(trajectories, findings.states)):
        if draw_case:
            path = pictures.timeline(case, draw_case, words, folder / f"case_{n}.png")
            drawn.append(Picture(path, "Critical states, and the analyst's reward for the action taken in each."))
        exchanges += [exchange_on(state, words) for state in pictures.telling(case.critical)]
        number = case.episode.number
        analysis = ("analysis", shortened(findings.analyses[number]))
        exchanges.append(exchange(f"Case analysis of episode {number}", "", analysis))
    if findings.strategies:
        strategies = ("strategies", shortened(findings.strategies))
        exchanges.append(exchange("Strategies of refinement that the analyst proposes", "", strategies))
    return drawn, exchanges


def filmed(folder: pathlib.Path, game: ControlGame, films: Mapping[str, Trajectories]) -> list[Picture]:
    """The films as one strip and as a GIF each."""
    thin = {label: pictures.thinned(pictures.states_of(episode, 0)) for label, episode in films.items()}
    strides = {label: stride for label, (_, stride) in thin.items()}
    frames = {label: game.draw(states) for label, (states, _) in thin.items()}
    strip = pictures.strip(frames, folder / "film.png", "One episode from the same start", strides)
    drawn = [Picture(strip, "The same start, played by each agent.")]
    for label, images in frames.items():
        path = pictures.gif(images, folder / f"{label.split()[0]}.gif", 0.05 * strides[label])
        drawn.append(Picture(path, label))
    return drawn


def explained(score: str, config: Mapping[str, Any], refined: Refined) -> str:
    """Explains the numbers of the tables."""
    bases, each = len(refined.bases), f"{config['seeds']} seed{'s' * (config['seeds'] != 1)}"
    trials = f"{bases} base agents with {each} each" if bases > 1 else f"{each} of one base agent"
    return (
        f"Scores: {score}, mean over {config['eval_episodes']} episodes, {trials}. All agents play without the lookup "
        f"table, but for the base agent that is guided by it before it learns. {refined.header} Gains over PPO are by "
        f"{refined.main}, paired by base agent and seed; a gain is within noise if its interval contains 0."
    )


def shortened(text: str) -> str:
    """A reply as the page shows it: what is too long is cut, and the text says so."""
    rest = len(text) - LONGEST
    return f"{text[:LONGEST]} ... ({rest:,} more characters)" if rest > 0 else text


def curves(folder: pathlib.Path, refined: Refined, label: str) -> pathlib.Path:
    """The main score against environment steps, a panel per table, all seeds of all base agents."""
    kind, panels = main_score(refined.continuous), {}
    started = [base.start[kind] for base in refined.bases for _ in base.seeds]
    for title, methods in TABLES.items():
        for name in (name for name in methods if name in refined.scores):
            runs = [metrics for base in refined.bases for metrics in base.metrics(name)]
            line = metric_line(runs, f"eval/{kind}", name, started)
            panels.setdefault(title, []).append(line._replace(x=refined.steps_per_update * line.x, points=False))
    return compare(panels, folder / "curves.png", "environment steps of refinement", label)


def cases(trajectories: Trajectories, states: Sequence[CriticalState]) -> list[Case]:
    """The episodes whose actions were rated worst, for the case study."""
    by_episode: dict[int, list[CriticalState]] = {}
    fines: Counter[int] = Counter()
    for state in states:
        by_episode.setdefault(state.episode, []).append(state)
        fines[state.episode] += min(pictures.taken_reward(state) or 0.0, 0.0)
    worst = sorted(by_episode, key=fines.__getitem__)[:CASES]
    episodes = episodes_of(trajectories)
    return [Case(episodes[n], by_episode[n], pictures.states_of(trajectories, n)) for n in worst]


def exchange_on(state: CriticalState, words) -> Exchange:
    """The analyst's replies on one critical state. words: action -> text."""
    parts = [("why it is critical", state.verdict.explanation or "(nothing)")]
    for action, text in state.reasons.items():
        kind = "taken" if action == state.taken else "suggested"
        parts.append((f"reward of {words(action)} ({kind})", shortened(text) or "(nothing)"))
    return exchange(f"Episode {state.episode}, timeslot {state.verdict.timeslot}", "", *parts)
