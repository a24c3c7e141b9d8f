"""Learning curves as PNG files."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

import numpy as np

from nlrl_jax.run.metrics import read_metrics

_COLORS = ("#2563c9", "#c2410c", "#15803d", "#7c3aed", "#be185d", "#0f766e", "#a16207", "#475569")
_SPARSE = 0.5  # a metric written in fewer iterations than this share is drawn as points, unsmoothed


def learning_curve(
    run_dirs: Sequence[str | os.PathLike],
    metrics: Sequence[str],
    path: str | os.PathLike,
    title: str = "",
    smoothing: float = 0.05,
) -> pathlib.Path:
    """Draws metrics against the iteration, one panel a metric.

    One run: the raw curve thin, a running mean over it. Several runs: the mean over runs of their running means, and a
    band of one standard deviation. Metrics written now and then (evaluations) are points.

    Args:
      run_dirs: one run, or several of the same experiment under different seeds.
      metrics: names as in metrics.jsonl; those that no run wrote are left out.
      path: the PNG to write.
      smoothing: width of the running mean as a share of the run; 0 is none.

    Returns:
      `path`.

    Raises:
      ValueError: no run wrote any of the metrics.
    """
    import matplotlib

    runs = [read_metrics(run_dir) for run_dir in run_dirs]
    written = [name for name in dict.fromkeys(metrics) if any(name in run for run in runs)]
    if not written:
        known = sorted({name for run in runs for name in run if name != "iteration"})
        raise ValueError(f"none of {', '.join(metrics)} is in {', '.join(map(str, run_dirs))}; there are {known}")
    style = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#888"}
    with matplotlib.rc_context(style):
        figure = _draw(runs, written, title, smoothing)
    path = pathlib.Path(path)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    return path


def _draw(runs, metrics, title, smoothing):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    columns = 1 if len(metrics) == 1 else 2
    rows = -(-len(metrics) // columns)
    figure = Figure(figsize=(4.6 * columns + 0.4 * (columns == 1) * 4, 3.0 * rows + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, fontsize=12)
    for k, (axes, name) in enumerate(zip(figure.subplots(rows, columns, squeeze=False).flat, metrics, strict=False)):
        _panel(axes, runs, name, _COLORS[k % len(_COLORS)], smoothing)
        axes.set_title(name, loc="left", fontsize=11, fontweight="bold")
        axes.set_xlabel("iteration")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.grid(True, color="#e4e4e7", linewidth=0.8)
        axes.set_axisbelow(True)
    for axes in list(figure.axes)[len(metrics) :]:
        axes.remove()
    return figure


def _panel(axes, runs, name, color, smoothing) -> None:
    runs = [run for run in runs if name in run]
    curves = [_curve(run, name) for run in runs]
    sparse = any(len(x) < _SPARSE * len(run["iteration"]) for run, (x, _) in zip(runs, curves, strict=True))
    width = 1 if sparse else max(1, round(smoothing * max((len(x) for x, _ in curves), default=0)))
    if len(curves) == 1:
        x, y = curves[0]
        if width > 1:
            axes.plot(x, y, color=color, linewidth=0.7, alpha=0.35)
        axes.plot(x, running_mean(y, width), color=color, linewidth=2, marker="o" if sparse else None, markersize=4)
        return
    x = sorted(set().union(*(set(x.tolist()) for x, _ in curves)))
    table = np.full((len(curves), len(x)), np.nan)
    for row, (at, y) in zip(table, curves, strict=True):
        row[np.searchsorted(x, at)] = running_mean(y, width)
    count = np.maximum(np.sum(~np.isnan(table), axis=0), 1)
    mean = np.nansum(table, axis=0) / count
    std = np.sqrt(np.nansum((table - mean) ** 2, axis=0) / count)
    axes.fill_between(x, mean - std, mean + std, color=color, alpha=0.18, linewidth=0)
    axes.plot(x, mean, color=color, linewidth=2, marker="o" if sparse else None, markersize=4)
    axes.annotate(
        f"mean ± std of {len(curves)} runs", (1, 1), xycoords="axes fraction", ha="right", va="bottom", fontsize=8
    )


def _curve(run, name) -> tuple[np.ndarray, np.ndarray]:
    """(iterations, values) where the metric is a finite number."""
    there = np.isfinite(run[name])
    return run["iteration"][there], run[name][there]


def running_mean(y: np.ndarray, width: int) -> np.ndarray:
    """Centred mean over `width` values, fewer at the ends: float [N] -> [N]."""
    if width <= 1 or not len(y):
        return y
    total = np.concatenate([[0.0], np.cumsum(y)])
    middle = np.arange(len(y))
    low, high = np.maximum(middle - width // 2, 0), np.minimum(middle + (width - 1) // 2 + 1, len(y))
    return (total[high] - total[low]) / (high - low)
