"""report.html of ULTRA: the tables, the curves, the case study (Figures 4 and 5) and episodes before and after."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from nlrl_jax.algorithms.analyst import CriticalState, Findings
from nlrl_jax.algorithms.ppo import PPOState
from nlrl_jax.backends.usage import Usage, describe_usage
from nlrl_jax.roles.trajectories import Episode
from nlrl_jax.rollouts import control
from nlrl_jax.rollouts.control import Record
from nlrl_jax.run import loop
from nlrl_jax.run import pictures as ultra_pictures
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.pictures import Case
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.report import write_report

if TYPE_CHECKING:
    from launch.reproduce_ultra import Run

QUESTION = "Does an analyst's word on critical states help a sub-optimal agent along, and by how much?"
CASES = 2  # episodes of the case study


def write(
    run: Run,
    base: PPOState,
    final: Mapping[str, PPOState],
    record: Record,
    episodes: Sequence[Episode],
    findings: Findings,
    scores: Mapping[str, np.ndarray],
    start: float,
    tables: tuple[list[dict[str, str]], list[dict[str, str]]],
) -> pathlib.Path:
    """Writes the page and its pictures into the run's folder.

    Args:
      final: the states of the methods of this call, of which the best is filmed.
      scores: of all methods that ever ran in the folder. start: of the base agent.
    """
    folder = run.run_dir
    pictures = [curves(run, scores, start, folder / "curves.png")]
    words = run.setting.roles.format_action
    exchanges = []
    for n, case in enumerate(cases(record, episodes, findings.states)):
        path = folder / f"case_{n}.png"
        pictures.append(ultra_pictures.timeline(case, run.setting.draw, words, path))
        exchanges += [exchange(state, words) for state in ultra_pictures.telling(case.critical)]
        analysis = findings.analyses[case.episode.number]
        exchanges.append(
            {"title": f"Case analysis of episode {case.episode.number}", "board": "", "parts": [("analysis", analysis)]}
        )
    best = max(final, key=lambda name: scores[name].mean())
    pictures += film(run, base, best, final[best], int(scores[best].argmax()))
    summary = [*tables[0], *({"method": f"{row['method']} (table 2)", "score": row["score"]} for row in tables[1])]
    told = ", ".join(f"{name} {number}" for name, number in sorted(findings.counts.items()))
    return write_report(
        folder,
        title=f"ULTRA on {run.setting.game.name}",
        question=QUESTION,
        config=dataclasses.asdict(run.config),
        summary=summary,
        curves=pictures,
        notes=[
            f"Scores: {run.setting.score}, mean over {run.config.eval_episodes} episodes, ± the deviation over "
            f"{run.config.seeds} seeds. Every agent plays alone, without the lookup table.",
            f"The analyst: {told}.",
            *hit_rates(run, scores),
            *describe_usage(Usage(folder)),
        ],
        exchanges=exchanges,
    )


def hit_rates(run: Run, scores: Mapping[str, Any]) -> list[str]:
    """How often the lookup table was met while refining, a sentence a method that has one."""
    told = []
    for name in scores:
        metrics = read_metrics(run.run_dir / name / f"seed_{run.config.seed}")
        if "critical" in metrics:
            critical, replaced = (100 * np.mean(metrics[field]) for field in ("critical", "guided"))
            told.append(f"{name}: {critical:.1f} % of the steps were critical, {replaced:.1f} % replaced (first seed).")
    return told


def curves(run: Run, scores: Mapping[str, Any], start: float, path: pathlib.Path) -> pathlib.Path:
    """Score against environment steps, every method."""
    lines = []
    per_update = run.ppo.num_envs * run.ppo.num_steps
    for name in scores:
        seeds = [run.config.seed + n for n in range(run.config.seeds)]
        runs = [read_metrics(folder) for folder in loop.seed_dirs(run.run_dir / name, seeds)]
        there = np.isfinite(runs[0]["eval/score"])
        x = per_update * np.concatenate([[0], runs[0]["iteration"][there] + 1])
        lines.append(Series(name, x, np.array([[start, *one["eval/score"][there]] for one in runs])))
    main = [line for line in lines if line.label in ("PPO", "ULTRA-A", "ULTRA-R", "ULTRA-RA")]
    rest = [line for line in lines if line not in main or line.label in ("PPO", "ULTRA-RA")]
    panels = {"ULTRA's variants and plain PPO": main} if main else {}
    if {line.label for line in rest} - {"PPO", "ULTRA-RA"}:
        panels["refiners beside them"] = rest
    return compare(panels, path, "environment steps of refinement", run.setting.score)


def cases(record: Record, episodes: Sequence[Episode], states: Sequence[CriticalState]) -> list[Case]:
    """The episodes whose actions were rated worst, for the case study."""
    by_episode: dict[int, list[CriticalState]] = {}
    for state in states:
        by_episode.setdefault(state.episode, []).append(state)
    blame = lambda found: sum(min(ultra_pictures.taken_reward(state) or 0.0, 0.0) for state in found)
    chosen = sorted(by_episode, key=lambda number: blame(by_episode[number]))[:CASES]
    return [Case(episodes[n], by_episode[n], ultra_pictures.states_of(record, n)) for n in chosen]


def exchange(state: CriticalState, words) -> dict[str, Any]:
    """What was said of one critical state."""
    parts = [("why it is critical", state.verdict.explanation or "(nothing)")]
    for action, text in state.reasons.items():
        kind = "taken" if action == state.taken else "suggested"
        parts.append((f"reward of {words(action)} ({kind})", text or "(nothing)"))
    return {"title": f"Episode {state.episode}, timeslot {state.verdict.timeslot}", "board": "", "parts": parts}


def film(run: Run, base: PPOState, name: str, states: PPOState, seed: int) -> list[pathlib.Path]:
    """A film strip and GIFs of an episode before and after refinement by the best method, from the same start."""
    game, steps = run.setting.game, run.config.episode_steps
    record_one = functools.partial(control.record, game.env, game.params, run.agent)
    play = jax.jit(lambda params, moments, key: record_one(params, moments, key, 1, steps))
    pictures, gifs = {}, []
    after = jax.tree.map(lambda leaf: leaf[seed], (states.params, states.obs_moments))
    for label, agent in (("before", (base.params, base.obs_moments)), (f"after {name}", after)):
        record = play(*agent, run.key(5))
        pictures[label] = run.setting.draw(ultra_pictures.states_of(record, 0))
        gifs.append(ultra_pictures.gif(pictures[label], run.run_dir / f"{label.split()[0]}.gif"))
    return [ultra_pictures.strip(pictures, run.run_dir / "film.png", "One episode from the same start"), *gifs]
