"""report.html of ULTRA: the tables, the curves, the case study (Figures 4 and 5) and an episode before and after."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.algorithms.analyst import CriticalState, Findings
from nlrl_jax.backends.usage import Usage
from nlrl_jax.rollouts.control import Trajectories, episodes_of
from nlrl_jax.run import loop
from nlrl_jax.run.exchanges import Exchange, exchange
from nlrl_jax.run.metrics import evaluations_of_seeds, read_metrics
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.report import Exchanges, Picture, Table, tokens, write_report
from nlrl_jax.run.reports import ultra_pictures as pictures
from nlrl_jax.run.reports import ultra_tables
from nlrl_jax.run.reports.ultra_pictures import Case
from nlrl_jax.run.reports.ultra_tables import Scores, headings, last_line, main_score, rounded, trials_header
from nlrl_jax.types import ControlGame

CASES = 2  # episodes of the case study
LONGEST = 4000  # characters of a reply on the page


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


class Refined(NamedTuple):
    """All methods with all base agents.

    Attributes:
      scores: of each method.
      steps_per_update: environment steps.
      continuous: the actions.
    """

    scores: Scores
    bases: Sequence[Base]
    steps_per_update: int
    continuous: bool

    def tables(self) -> list[list[dict[str, str]]]:
        """Rows of the paper's tables 1 and 2."""
        kinds = headings(self.continuous)
        start = {kind: np.array([base.start[kind] for base in self.bases]) for kind in kinds}
        return list(ultra_tables.tables(self.scores, start, self.continuous))


class Evidence(NamedTuple):
    """What the page shows of play.

    Attributes:
      trajectories: the episodes of the first base agent. findings: the analyst's, about them.
      films: label -> one episode, from the same start.
    """

    trajectories: Trajectories
    findings: Findings
    films: Mapping[str, Trajectories]


def write(
    folder: pathlib.Path, game: ControlGame, config: Mapping[str, Any], refined: Refined, evidence: Evidence
) -> pathlib.Path:
    """Writes the page and its pictures into the run's folder. config: flat, of `nlrl-jax reproduce_ultra`."""
    scores, bases, _, continuous = refined
    findings = evidence.findings
    first, second = refined.tables()
    counts = [{"reply": name, "times": number} for name, number in sorted(findings.counts.items())]
    coverage = "with the first base agent" if len(bases) > 1 else "all stages"
    analyst = [
        Table("Before learning", guidance(bases, continuous), "Alone, and guided by the analyst's lookup table."),
        Table("The analyst's replies", counts, f"A model that sees text only; {coverage}."),
        Table("Steps in critical states", hit_rates(bases[0], scores), "Of the first base agent and seed."),
    ]
    drawn, exchanges = case_study(folder, game, evidence)
    ultra_tables.measurements(scores).write(folder)
    return write_report(
        folder,
        title=f"ULTRA on {game.name}, analyst {config['analyst']}",
        question="Does an analyst's guidance on critical states help to refine a sub-optimal agent, and by how much?",
        config=config,
        blocks=[
            Table("Variants and plain PPO", first, explained(game.score, config, len(bases), continuous)),
            Table("Refiners", second),
            Picture(
                curves(folder, refined, game.score),
                f"Score by {headings(continuous)[main_score(continuous)]}; bands are one standard deviation, "
                "dashed lines the best run.",
            ),
            *(analyst if game.roles else ["The game has no prompts for an analyst, so none was asked."]),
            *drawn,
            *(filmed(folder, game, evidence.films) if game.draw else []),
            tokens(Usage(folder)),
            Exchanges(exchanges),
        ],
        headline=last_line(scores, continuous),
    )


def case_study(folder: pathlib.Path, game: ControlGame, evidence: Evidence) -> tuple[list[Picture], list[Exchange]]:
    """(timelines of a few episodes, what the analyst wrote about them)."""
    words = game.roles.format_action if game.roles else str
    draw_case = game.draw_case or (game.draw and (lambda states, actions, suggested: game.draw(states)))
    drawn, exchanges, findings = [], [], evidence.findings
    for n, case in enumerate(cases(evidence.trajectories, findings.states)):
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
    gifs = {
        label: pictures.gif(frames[label], folder / f"{label.split()[0]}.gif", 0.05 * strides[label])
        for label in frames
    }
    return [
        Picture(strip, "The same start, played by each agent."),
        *(Picture(path, label) for label, path in gifs.items()),
    ]


def explained(score: str, config: Mapping[str, Any], bases: int, continuous: bool) -> str:
    """Explains the numbers of the tables."""
    each = "1 seed" if config["seeds"] == 1 else f"{config['seeds']} seeds"
    trials = f"{bases} base agents with {each} each" if bases > 1 else f"{each} of one base agent"
    by = headings(continuous)[main_score(continuous)]
    return (
        f"Scores: {score}, mean over {config['eval_episodes']} episodes, {trials}. All agents play without the lookup "
        f"table. {trials_header(bases, config['seeds'])} Gains over PPO are by {by}, paired by base agent and seed; a "
        "gain is within noise if its interval contains 0."
    )


def guidance(bases: Sequence[Base], continuous: bool) -> list[dict[str, Any]]:
    """A row for each base agent: its scores alone and with the table, before anything is learned."""
    return [
        {"base agent": number}
        | {
            f"{name}, {stage}": rounded(scores[kind])
            for kind, name in headings(continuous).items()
            for stage, scores in (("alone", base.start), ("guided", base.guided))
        }
        for number, base in enumerate(bases)
    ]


def shortened(text: str) -> str:
    """A reply as the page shows it: what is too long is cut, and the text says so."""
    rest = len(text) - LONGEST
    return f"{text[:LONGEST]} ... ({rest:,} more characters)" if rest > 0 else text


def hit_rates(base: Base, scores: Scores) -> list[dict[str, str]]:
    """The share of steps in critical states, a row for each method with a lookup table."""
    rows = []
    for name in scores:
        metrics = read_metrics(base.folder / name / f"seed_{base.seeds[0]}")
        if "critical" in metrics:
            critical, replaced = (f"{np.mean(metrics[field]):.1%}" for field in ("critical", "replaced"))
            rows.append({"method": name, "critical": critical, "action replaced": replaced})
    return rows


def curves(folder: pathlib.Path, refined: Refined, label: str) -> pathlib.Path:
    """The main score against environment steps, every method, all seeds of all base agents."""
    kind, lines = main_score(refined.continuous), []
    for name in refined.scores:
        folders = [part for base in refined.bases for part in loop.seed_dirs(base.folder / name, base.seeds)]
        started = [base.start[kind] for base in refined.bases for _ in base.seeds]
        updates, ys = evaluations_of_seeds(folders, f"eval/{kind}", started)
        lines.append(Series(name, refined.steps_per_update * updates, ys))
    main = [line for line in lines if line.label in ("PPO", "ULTRA-A", "ULTRA-R", "ULTRA-RA")]
    rest = [line for line in lines if line not in main or line.label in ("PPO", "ULTRA-RA")]
    panels = {"ULTRA's variants and plain PPO": main} if main else {}
    if {line.label for line in rest} - {"PPO", "ULTRA-RA"}:
        panels["other refiners"] = rest
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
