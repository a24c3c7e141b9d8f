"""report.html of ULTRA: the tables, the curves, the case study (Figures 4 and 5) and an episode before and after."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nlrl_jax.algorithms.analyst import CriticalState, Findings
from nlrl_jax.algorithms.refiners import methods as refiners
from nlrl_jax.backends.usage import Usage, describe_usage
from nlrl_jax.rollouts.control import Trajectories, episodes_of
from nlrl_jax.run import loop, pictures
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.pictures import Case
from nlrl_jax.run.plots import Series, compare, deviation
from nlrl_jax.run.report import write_report
from nlrl_jax.types import ControlGame

QUESTION = "Does an analyst's guidance on critical states help to refine a sub-optimal agent, and by how much?"
CASES = 2  # episodes of the case study
LONGEST = 4000  # characters of a reply on the page


def write(
    folder: pathlib.Path,
    game: ControlGame,
    config: Mapping[str, Any],
    tables: Sequence[Sequence[Mapping[str, str]]],
    scores: Mapping[str, np.ndarray],
    start: float,
    steps_per_update: int,
    trajectories: Trajectories,
    findings: Findings,
    films: Mapping[str, Trajectories],
) -> pathlib.Path:
    """Writes the page and its pictures into the run's folder.

    Args:
      config: flat, of `launch.reproduce_ultra`.
      tables: rows of the paper's tables 1 and 2.
      scores: [seeds] of each method in the folder. start: of the base agent.
      trajectories: the episodes that `findings` are about.
      films: label -> one episode, from the same start.
    """
    seeds = [config["seed"] + n for n in range(config["seeds"])]
    images = [curves(folder, scores, start, seeds, steps_per_update, game.score)]
    words = game.roles.format_action
    exchanges = []
    for n, case in enumerate(cases(trajectories, findings.states)):
        images.append(pictures.timeline(case, game.draw, words, folder / f"case_{n}.png"))
        exchanges += [exchange(state, words) for state in pictures.telling(case.critical)]
        analysis = ("analysis", shortened(findings.analyses[case.episode.number]))
        exchanges.append({"title": f"Case analysis of episode {case.episode.number}", "board": "", "parts": [analysis]})
    frames = {label: game.draw(pictures.states_of(episode, 0)) for label, episode in films.items()}
    images.append(pictures.strip(frames, folder / "film.png", "One episode from the same start"))
    for label in frames:
        images.append(pictures.gif(frames[label], folder / f"{label.split()[0]}.gif"))
    first, second = tables
    counts = ", ".join(f"{name} {number}" for name, number in sorted(findings.counts.items()))
    return write_report(
        folder,
        title=f"ULTRA on {game.name}",
        question=QUESTION,
        config=config,
        summary=[*first, *({**row, "method": f"{row['method']} (table 2)"} for row in second)],
        curves=images,
        notes=[
            f"Scores: {game.score}, mean over {config['eval_episodes']} episodes, ± the deviation over "
            f"{len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}. All agents play without the lookup table.",
            f"The analyst: {counts}.",
            *hit_rates(folder, scores, seeds[0]),
            *describe_usage(Usage(folder)),
        ],
        exchanges=exchanges,
        headline=headline(scores),
    )


def headline(scores: Mapping[str, np.ndarray]) -> str:
    """ULTRA-RA beside continued PPO; "" where one of them was not run."""
    if not {"PPO", "ULTRA-RA"} <= scores.keys():
        return ""
    return f"ULTRA-RA over PPO: {scores['PPO'].mean():.3f} -> {scores['ULTRA-RA'].mean():.3f}"


def tables(scores: Mapping[str, np.ndarray], start: float) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Rows of tables 1 and 2 for the finished methods, and ULTRA-RA's gain over the mean of its baselines.

    The paper's percentages for the robots are such gains (Hopper 7.68, Walker2d 13.77, Ant 5.55), over a mean that
    includes PPO. Its Pong has 165 %, where its rounded scores give 156 %.
    """
    text = lambda name: f"{scores[name].mean():.3f} ± {deviation(scores[name]):.3f}"
    rows = lambda names: [{"method": name, "score": text(name)} for name in names if name in scores]
    first = [{"method": "base agent", "score": f"{start:.3f}"}, *rows(refiners.TABLE_1)]
    baselines = [name for name in refiners.BASELINES if name in scores]
    level = np.mean([scores[name].mean() for name in baselines]) if baselines else 0.0
    if "ULTRA-RA" in scores and level > 0:
        gain = scores["ULTRA-RA"].mean() / level - 1
        first.append({"method": f"ULTRA-RA over the mean of {', '.join(baselines)}", "score": f"{100 * gain:+.1f} %"})
    return first, rows(refiners.TABLE_2)


def shortened(text: str) -> str:
    """A reply as the page shows it: what is too long is cut, and the text says so."""
    rest = len(text) - LONGEST
    return f"{text[:LONGEST]} ... ({rest:,} more characters)" if rest > 0 else text


def hit_rates(folder: pathlib.Path, scores: Mapping[str, Any], seed: int) -> list[str]:
    """The share of steps in critical states, one sentence for each method with a lookup table."""
    sentences = []
    for name in scores:
        metrics = read_metrics(folder / name / f"seed_{seed}")
        if "critical" in metrics:
            critical, replaced = (100 * np.mean(metrics[field]) for field in ("critical", "replaced"))
            sentences.append(
                f"{name}: {critical:.1f} % of the steps in critical states, {replaced:.1f} % replaced (first seed)."
            )
    return sentences


def curves(
    folder: pathlib.Path,
    scores: Mapping[str, Any],
    start: float,
    seeds: Sequence[int],
    steps_per_update: int,
    label: str,
) -> pathlib.Path:
    """Score against environment steps, every method."""
    lines = []
    for name in scores:
        runs = [read_metrics(part) for part in loop.seed_dirs(folder / name, seeds)]
        evaluated = np.isfinite(runs[0]["eval/score"])
        x = steps_per_update * np.concatenate([[0], runs[0]["iteration"][evaluated] + 1])
        lines.append(Series(name, x, np.array([[start, *run["eval/score"][evaluated]] for run in runs])))
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
