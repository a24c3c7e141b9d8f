"""report.html of ULTRA: the tables, the curves, the case study (Figures 4 and 5) and an episode before and after."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.algorithms.analyst import CriticalState, Findings
from nlrl_jax.backends.usage import Usage, describe_usage
from nlrl_jax.rollouts.control import Trajectories, episodes_of
from nlrl_jax.run import loop, pictures
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.pictures import Case
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.report import write_report
from nlrl_jax.run.reports.ultra_tables import Scores, headings, headline, main_score, rounded, trials_header
from nlrl_jax.types import ControlGame

QUESTION = "Does an analyst's guidance on critical states help to refine a sub-optimal agent, and by how much?"
CASES = 2  # episodes of the case study
LONGEST = 4000  # characters of a reply on the page


class Base(NamedTuple):
    """One base agent's part of a run: its folder, its seeds of refinement, its own score and with the table at hand."""

    folder: pathlib.Path
    seeds: Sequence[int]
    start: Mapping[str, float]
    guided: Mapping[str, float]


def write(
    folder: pathlib.Path,
    game: ControlGame,
    config: Mapping[str, Any],
    tables: Sequence[Sequence[Mapping[str, str]]],
    scores: Scores,
    bases: Sequence[Base],
    steps_per_update: int,
    trajectories: Trajectories,
    findings: Findings,
    films: Mapping[str, Trajectories],
    continuous: bool,
) -> pathlib.Path:
    """Writes the page and its pictures into the run's folder.

    Args:
      config: flat, of `launch.reproduce_ultra`.
      tables: rows of the paper's tables 1 and 2.
      scores: of each method in the folder.
      trajectories: the episodes of the first base agent, which `findings` are about.
      films: label -> one episode, from the same start.
      continuous: the actions.
    """
    images = [curves(folder, scores, bases, steps_per_update, game.score, main_score(continuous))]
    words = game.roles.format_action if game.roles else str
    draw_case = game.draw_case or (game.draw and (lambda states, taken, suggested: game.draw(states)))
    exchanges = []
    for n, case in enumerate(cases(trajectories, findings.states)):
        if draw_case:
            images.append(pictures.timeline(case, draw_case, words, folder / f"case_{n}.png"))
        exchanges += [exchange(state, words) for state in pictures.telling(case.critical)]
        analysis = ("analysis", shortened(findings.analyses[case.episode.number]))
        exchanges.append({"title": f"Case analysis of episode {case.episode.number}", "board": "", "parts": [analysis]})
    if findings.strategies:
        parts = [("strategies", shortened(findings.strategies))]
        exchanges.append({"title": "Strategies of refinement that the analyst proposes", "board": "", "parts": parts})
    images += filmed(folder, game, films) if game.draw else []
    first, second = tables
    counts = ", ".join(f"{name} {number}" for name, number in sorted(findings.counts.items()))
    advice = [
        *(guidance(n, base, continuous) for n, base in enumerate(bases)),
        f"The analyst's findings{' in the first base agent' * (len(bases) > 1)}: {counts}.",
    ]
    return write_report(
        folder,
        title=f"ULTRA on {game.name}",
        question=QUESTION,
        config=config,
        summary=[*first, *({**row, "method": f"{row['method']} (table 2)"} for row in second)],
        curves=images,
        notes=[
            explained(game.score, config, len(bases), continuous),
            *(advice if game.roles else ["The game has no prompts for an analyst, so none was asked."]),
            *hit_rates(bases[0], scores),
            *describe_usage(Usage(folder)),
        ],
        exchanges=exchanges,
        headline=headline(scores, continuous),
    )


def filmed(folder: pathlib.Path, game: ControlGame, films: Mapping[str, Trajectories]) -> list[pathlib.Path]:
    """The films as one strip and as a GIF each."""
    thin = {label: pictures.thinned(pictures.states_of(episode, 0)) for label, episode in films.items()}
    strides = {label: stride for label, (_, stride) in thin.items()}
    frames = {label: game.draw(states) for label, (states, _) in thin.items()}
    strip = pictures.strip(frames, folder / "film.png", "One episode from the same start", strides)
    return [strip] + [
        pictures.gif(frames[label], folder / f"{label.split()[0]}.gif", 0.05 * strides[label]) for label in frames
    ]


def explained(score: str, config: Mapping[str, Any], bases: int, continuous: bool) -> str:
    """What the numbers of the tables are."""
    each = "1 seed" if config["seeds"] == 1 else f"{config['seeds']} seeds"
    trials = f"{bases} base agents with {each} each" if bases > 1 else f"{each} of one base agent"
    by = headings(continuous)[main_score(continuous)]
    return (
        f"Scores: {score}, mean over {config['eval_episodes']} episodes, {trials}. All agents play without the lookup "
        f"table. {trials_header(bases, config['seeds'])} Gains over PPO are by {by}, paired by base agent and seed; "
        "within noise are those whose interval holds 0."
    )


def guidance(number: int, base: Base, continuous: bool) -> str:
    """The base agent's score alone and with the table, before anything is learned."""
    names = headings(continuous)
    scores = [f"{names[kind]} {rounded(base.start[kind])} alone, {rounded(base.guided[kind])} guided" for kind in names]
    return f"Base agent {number} before learning: {'; '.join(scores)}."


def shortened(text: str) -> str:
    """A reply as the page shows it: what is too long is cut, and the text says so."""
    rest = len(text) - LONGEST
    return f"{text[:LONGEST]} ... ({rest:,} more characters)" if rest > 0 else text


def hit_rates(base: Base, scores: Scores) -> list[str]:
    """The share of steps in critical states, one sentence for each method with a lookup table."""
    sentences = []
    for name in scores:
        metrics = read_metrics(base.folder / name / f"seed_{base.seeds[0]}")
        if "critical" in metrics:
            critical, replaced = (100 * np.mean(metrics[field]) for field in ("critical", "replaced"))
            sentences.append(
                f"{name}: {critical:.1f} % of the steps in critical states, {replaced:.1f} % replaced (first seed)."
            )
    return sentences


def curves(
    folder: pathlib.Path, scores: Scores, bases: Sequence[Base], steps_per_update: int, label: str, kind: str
) -> pathlib.Path:
    """Score of one kind against environment steps, every method, all seeds of all base agents."""
    lines = []
    for name in scores:
        ys, x = [], np.zeros(1)
        for base in bases:
            for part in loop.seed_dirs(base.folder / name, base.seeds):
                run = read_metrics(part)
                evaluated = np.isfinite(run[f"eval/{kind}"])
                x = steps_per_update * np.concatenate([[0], run["iteration"][evaluated] + 1])
                ys.append([base.start[kind], *run[f"eval/{kind}"][evaluated]])
        lines.append(Series(name, x, np.array(ys)))
    main = [line for line in lines if line.label in ("PPO", "ULTRA-A", "ULTRA-R", "ULTRA-RA")]
    rest = [line for line in lines if line not in main or line.label in ("PPO", "ULTRA-RA")]
    panels = {"ULTRA's variants and plain PPO": main} if main else {}
    if {line.label for line in rest} - {"PPO", "ULTRA-RA"}:
        panels["other refiners"] = rest
    return compare(panels, folder / "curves.png", "environment steps of refinement", label)


def cases(trajectories: Trajectories, states: Sequence[CriticalState]) -> list[Case]:
    """The episodes whose actions were rated worst, for the case study."""
    by_episode: dict[int, list[CriticalState]] = {}
    for state in states:
        by_episode.setdefault(state.episode, []).append(state)
    blame = lambda critical: sum(min(pictures.taken_reward(state) or 0.0, 0.0) for state in critical)
    chosen = sorted(by_episode, key=lambda number: blame(by_episode[number]))[:CASES]
    episodes = episodes_of(trajectories)
    return [Case(episodes[n], by_episode[n], pictures.states_of(trajectories, n)) for n in chosen]


def exchange(state: CriticalState, words) -> dict[str, Any]:
    """The analyst's replies on one critical state. words: action -> text."""
    parts = [("why it is critical", state.verdict.explanation or "(nothing)")]
    for action, text in state.reasons.items():
        kind = "taken" if action == state.taken else "suggested"
        parts.append((f"reward of {words(action)} ({kind})", shortened(text) or "(nothing)"))
    return {"title": f"Episode {state.episode}, timeslot {state.verdict.timeslot}", "board": "", "parts": parts}
