"""ULTRA's pictures: critical timesteps on a timeline with frames (the paper's Figures 4 and 5), and film strips."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from nlrl_jax.algorithms.analyst import CriticalState
from nlrl_jax.roles.trajectories import Action, ControlEpisode
from nlrl_jax.rollouts.control import Trajectories

_GOOD, _BAD, _NONE = "#11723a", "#b3261e", "#8a8d94"
_FRAMES = 4  # on a timeline
_STRIP, _GIF = 8, 120  # frames of a strip; most frames of a GIF


class Case(NamedTuple):
    """An episode and its critical states. states: env states, leading axis [T]."""

    episode: ControlEpisode
    critical: Sequence[CriticalState]
    states: Any


def states_of(record: Trajectories, n: int) -> Any:
    """The env states of episode n of a record, leading axis [T]."""
    T = int(record.steps[n])
    return jax.tree.map(lambda leaf: np.asarray(leaf[:T, n]), record.env_state)


def taken_reward(state: CriticalState) -> float | None:
    """The analyst's reward for the action taken; None if it gave none."""
    return state.rewards.get(state.taken)


def telling(critical: Sequence[CriticalState], limit: int = _FRAMES) -> list[CriticalState]:
    """At most `limit` states in order of time, with a gap between them: the worst actions and the best one."""
    slots = [state.verdict.timeslot for state in critical]
    gap = max((max(slots) - min(slots)) // 25, 2) if slots else 2
    rated = sorted((s for s in critical if taken_reward(s) is not None), key=taken_reward)
    chosen: list[CriticalState] = []
    for state in [*rated[: limit - 1], *rated[::-1][:1], *rated]:
        apart = all(abs(state.verdict.timeslot - neighbour.verdict.timeslot) > gap for neighbour in chosen)
        if apart and len(chosen) < limit:
            chosen.append(state)
    return sorted(chosen, key=lambda s: s.verdict.timeslot)


def timeline(case: Case, draw_case, words, path: pathlib.Path) -> pathlib.Path:
    """Draws an episode: its critical timesteps, the reward of the action taken in each, and a few frames.

    Args:
      draw_case: (env states, the actions taken there, the suggested ones) -> pictures.
      words: action -> text.
    """
    from matplotlib.figure import Figure

    labelled = telling(case.critical)
    figure = Figure(figsize=(11, 6.4 if labelled else 3), layout="constrained")
    grid = figure.add_gridspec(2 if labelled else 1, max(len(labelled), 1), height_ratios=[1, 1.7] if labelled else [1])
    axes = figure.add_subplot(grid[0, :])
    axes.axhline(0, color="#c9c9c4", linewidth=1)
    for state in case.critical:
        reward = taken_reward(state)
        color = _NONE if reward is None else _GOOD if reward > 0 else _BAD
        axes.vlines(state.verdict.timeslot, 0, reward or 0.03, color=color, linewidth=2)
        if state.verdict.action is not None:
            axes.plot(state.verdict.timeslot, reward or 0.0, "o", color=color, markersize=4)
    for letter, state in zip("ABCDEFGH", labelled):
        axes.annotate(letter, (state.verdict.timeslot, 1.12), ha="center", fontsize=11, fontweight="bold")
    axes.set(xlim=(-1, len(case.episode) + 1), ylim=(-1.15, 1.35))
    axes.set(ylabel="reward of the action taken", xlabel="timeslot (a dot: another action was suggested)")
    ending = "ended" if case.episode.terminated else "was cut"
    title = f"Episode {case.episode.number}: {len(case.critical)} critical of {len(case.episode)} timeslots"
    axes.set_title(f"{title}; it {ending} with a return of {case.episode.rewards.sum():.4g}", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    if labelled:
        slots = np.array([state.verdict.timeslot for state in labelled])
        here = jax.tree.map(lambda leaf: leaf[slots], case.states)
        pictures = draw_case(here, [state.taken for state in labelled], [state.verdict.action for state in labelled])
        for column, (letter, state) in enumerate(zip("ABCDEFGH", labelled)):
            frame = figure.add_subplot(grid[1, column], xticks=[], yticks=[])
            frame.imshow(pictures[column])
            frame.set_title(_caption(letter, state, words), loc="left", fontsize=9)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    return path


def _caption(letter: str, state: CriticalState, words) -> str:
    lines = [f"{letter}  timeslot {state.verdict.timeslot}"]
    lines += textwrap.wrap(f"did: {words(state.taken)}{_rated(state, state.taken)}", 38)
    better = state.verdict.action
    if better is not None:
        lines += textwrap.wrap(f"better: {words(better)}{_rated(state, better)}", 38)
    elif state.verdict.judged:
        lines.append("better: the same action")
    return "\n".join(lines)


def _rated(state: CriticalState, action: Action) -> str:
    return f", reward {state.rewards[action]:+.2f}" if action in state.rewards else ""


def thinned(states: Any) -> tuple[Any, int]:
    """(every n-th of the states [T], n), as many as a GIF shows."""
    stride = -(-len(jax.tree.leaves(states)[0]) // _GIF)
    return jax.tree.map(lambda leaf: leaf[::stride], states), stride


def strip(rows: dict[str, np.ndarray], path: pathlib.Path, title: str, strides: Mapping[str, int]) -> pathlib.Path:
    """Draws a film strip of a few evenly spaced pictures for each label: label -> pictures [T, H, W, 3].

    Args:
      strides: label -> timesteps from one picture to the next.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.75 * len(rows) + 0.4), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    grid = figure.subplots(len(rows), _STRIP, squeeze=False, subplot_kw={"xticks": [], "yticks": []})
    for axes, (label, pictures) in zip(grid, rows.items()):
        times = np.unique(np.linspace(0, len(pictures) - 1, _STRIP).round().astype(int))
        for column, frame in enumerate(axes):
            if column >= len(times):
                frame.set_visible(False)
                continue
            frame.imshow(pictures[times[column]])
            frame.set_xlabel(f"t = {times[column] * strides[label]}", fontsize=8)
        axes[0].set_ylabel(label, fontsize=9)
    figure.savefig(path, dpi=110)
    return path


def gif(pictures: np.ndarray, path: pathlib.Path, seconds: float) -> pathlib.Path:
    """Writes a GIF of pictures [T, H, W, 3], each shown for so many seconds."""
    from PIL import Image

    images = [Image.fromarray(picture) for picture in pictures]
    images[0].save(path, save_all=True, append_images=images[1:], duration=int(1000 * seconds), loop=0)
    return path
