"""Learning curves and comparisons as PNG files.

One convention for all curves of training: x is the number of iterations done. An evaluation before training is at 0,
and the metrics of the first iteration (`"iteration": 0` in metrics.jsonl) at 1. Shares (success, win rate, accuracy)
have an axis from 0 to 1.
"""

from __future__ import annotations

import logging
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.run import processes
from nlrl_jax.run.metrics import read_metrics, words
from nlrl_jax.statistics import deviation, half_widths

_COLORS = ("#2563c9", "#c2410c", "#15803d", "#7c3aed", "#be185d", "#0f766e", "#a16207", "#475569", "#0891b2", "#84cc16")
_STYLE = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#888"}
_SHARE = re.compile(
    r"\b(share|success|win|tie|accuracy|answered|terminated)\b|(win|tie|loss|cut)[_ ]rate|eval/loss|loss, evaluated"
)
SMOOTHING = 0.05  # width of a running mean as a share of the run
_SPARSE = 0.5  # a metric written in fewer iterations than this share is drawn as points, unsmoothed

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it reports each build of its font cache


def learning_curve(
    run_dirs: Sequence[str | os.PathLike],
    metrics: Sequence[str],
    path: str | os.PathLike,
    smoothing: float = SMOOTHING,
    before: Mapping[str, float] | None = None,
) -> pathlib.Path:
    """Draws metrics against the number of iterations done, one panel per metric.

    One run: the raw curve thin, a running mean over it. Several runs: the mean over runs of their running means, and
    its 95 % interval as a band (Student's t). Metrics that few iterations write (evaluations) are points.

    Args:
      run_dirs: one run, or several of the same experiment under different seeds.
      metrics: names as in metrics.jsonl; those that no run wrote are left out.
      path: the PNG to write.
      smoothing: width of the running mean as a share of the run; 0 is none.
      before: values before training, drawn at 0.

    Returns:
      `path`.

    Raises:
      ValueError: no run wrote any of the metrics.
    """
    runs = [read_metrics(run_dir) for run_dir in run_dirs]
    available = [name for name in dict.fromkeys(metrics) if any(name in run for run in runs)]
    if not available:
        names = sorted({name for run in runs for name in run if name != "iteration"})
        raise ValueError(f"none of {', '.join(metrics)} is in {', '.join(map(str, run_dirs))}; there are {names}")
    panels = {}
    for name in available:
        start = (before or {}).get(name)
        panels[words(name)] = [metric_line([run for run in runs if name in run], name, words(name), start, smoothing)]
    return compare(panels, path, "iteration", "", errors=True)


def metric_line(
    runs: Sequence[Mapping[str, np.ndarray]], name: str, label: str, before: Any = None, smoothing: float = 0.0
) -> Series:
    """A metric over the iterations done, with a row for each run.

    Args:
      runs: as `read_metrics` reads them.
      before: its value before training, drawn at 0: of all runs, or one for each. None: it has none.
      smoothing: width of the running mean as a share of the run; a metric that few iterations write has none.
    """
    curves = []
    starts = np.full(len(runs), np.nan) if before is None else np.broadcast_to(before, len(runs))
    for run, start in zip(runs, starts, strict=True):
        values = np.append(start, run.get(name, np.full(len(run["iteration"]), np.nan)))
        finite = np.isfinite(values)
        curves.append((np.append(0, run["iteration"] + 1)[finite], values[finite]))
    is_sparse = any(len(x) < _SPARSE * len(run["iteration"]) for run, (x, _) in zip(runs, curves, strict=True))
    width = 1 if is_sparse else max(1, round(smoothing * max(len(x) for x, _ in curves)))
    x = np.unique(np.concatenate([x for x, _ in curves]))
    ys = np.full((len(curves), len(x)), np.nan)
    for row, (at, y) in zip(ys, curves, strict=True):
        row[np.searchsorted(x, at)] = running_mean(y, width)
    raw = curves[0][1] if len(curves) == 1 and width > 1 else None
    return Series(label, x, ys, raw, is_sparse or len(x) == 1)


def _limit(axes, name: str, values: np.ndarray) -> None:
    """x from 0, and y from 0 to 1 for a share."""
    axes.set_xlim(left=0)
    values = values[np.isfinite(values)]
    if _SHARE.search(name) and ((values >= 0) & (values <= 1)).all():
        axes.set_ylim(-0.02, 1.02)


def running_mean(y: np.ndarray, width: int) -> np.ndarray:
    """Centred mean over `width` values, fewer at the ends: float [N] -> [N]."""
    if width <= 1 or not len(y):
        return y
    total = np.concatenate([[0.0], np.cumsum(y)])
    middle = np.arange(len(y))
    low, high = np.maximum(middle - width // 2, 0), np.minimum(middle + (width - 1) // 2 + 1, len(y))
    return (total[high] - total[low]) / (high - low)


class Series(NamedTuple):
    """One line of a panel.

    Attributes:
      x: [N]. ys: [n, N], a row per run (nan where a run has no value).
      raw: [N], drawn thin behind it. points: whether the values are marked.
    """

    label: str
    x: Sequence[float]
    ys: np.ndarray
    raw: np.ndarray | None = None
    points: bool = False


def compare(
    panels: Mapping[str, Sequence[Series]],
    path: str | os.PathLike,
    xlabel: str,
    ylabel: str,
    errors: bool = False,
) -> pathlib.Path:
    """Draws panels of curves: the mean of each series, a band of one standard deviation, and its best run dashed.

    The best run is the one with the highest last value. With a single run there is only the line. With more than five
    lines in a panel the legend is below.

    Args:
      panels: title -> series. A label has the same colour in all panels; one that is its panel's title has no legend.
      path: the PNG to write.
      errors: the band is the 95 % interval of the mean (`statistics.half_widths`), and no run is dashed.
    """
    from matplotlib.ticker import MaxNLocator

    named: set[str] = set()
    crowded = max(map(len, panels.values())) > 5

    def draw(axes, title, panel, place) -> None:
        for series in panel:
            ys, color = np.asarray(series.ys, float), _COLORS[place[series.label] % len(_COLORS)]
            mean, band = np.nanmean(ys, axis=0), (half_widths if errors else deviation)(ys)
            if series.raw is not None:
                axes.plot(series.x, series.raw, color=color, linewidth=0.7, alpha=0.35)
            marker = "o" if series.points else None
            axes.plot(series.x, mean, color=color, linewidth=2, label=series.label, marker=marker, markersize=4)
            if len(ys) > 1:
                axes.fill_between(series.x, mean - band, mean + band, color=color, alpha=0.18, linewidth=0)
            if len(ys) > 1 and not errors:
                axes.plot(series.x, ys[np.argmax(ys[:, -1])], color=color, linewidth=1, linestyle="--")
        _dress(axes, title, xlabel, ylabel)
        if all(float(x).is_integer() for series in panel for x in series.x):
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        _limit(axes, f"{title} {ylabel}", np.concatenate([[0.0], *(np.ravel(series.ys) for series in panel)]))
        new = {series.label for series in panel} - {*named, title}
        if new and not crowded:  # a legend in the panel where a colour first appears
            axes.legend(frameon=False, fontsize=9)
        named.update(new)

    return _draw_panels(panels, path, draw, crowded)


class Bar(NamedTuple):
    """A bar: its height and the length of its error bar to either side, or (below, above); nan draws none."""

    label: str
    height: float
    error: float | tuple[float, float]


def bars(panels: Mapping[str, Sequence[Bar]], path: str | os.PathLike, ylabel: str) -> pathlib.Path:
    """Draws panels of bars with error bars and their values above. A label has the same colour in all panels.

    Labels are below the bars, or in a legend if a panel has more than five.
    """
    crowded = max(map(len, panels.values())) > 5

    def draw(axes, title, panel, place) -> None:
        for i, bar in enumerate(panel):
            n = place[bar.label]
            look = dict(color=_COLORS[n % len(_COLORS)], hatch="///"[: 3 * (n // len(_COLORS))], edgecolor="#fff")
            look |= dict(linewidth=0, width=0.7, capsize=3, ecolor="#555", label=bar.label)
            axes.bar(i, bar.height, yerr=_arms(bar.error), **look)
            up = bar.height >= 0
            above = dict(ha="center", va="bottom" if up else "top", fontsize=8, textcoords="offset points")
            axes.annotate(f"{bar.height:.2f}", (i + 0.2, bar.height), xytext=(0, 3 if up else -3), **above)
        axes.set_xticks(range(len(panel)), ["" if crowded else bar.label for bar in panel], fontsize=8)
        axes.axhline(0, color="#888", linewidth=0.8)
        axes.margins(y=0.12)
        _dress(axes, title, "", ylabel)
        if _SHARE.search(f"{title} {ylabel}") and all(0 <= bar.height <= 1 for bar in panel):
            axes.set_ylim(0, 1.12)

    return _draw_panels(panels, path, draw, legend_below=crowded)


class Point(NamedTuple):
    """A point with the length of its error bar to either side of y, or (below, above); nan draws none."""

    label: str
    x: float
    y: float
    error: float | tuple[float, float]


def points(panels: Mapping[str, Sequence[Point]], path: str | os.PathLike, ylabel: str) -> pathlib.Path:
    """Draws panels of points; a title is the name of x. A label has the same colour and marker in all panels.

    An x of which the largest is more than ten times the smallest is drawn on a logarithmic axis.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

    def draw(axes, title, panel, place) -> None:
        for label, x, y, error in panel:
            i = place[label]
            style = dict(color=_COLORS[i % len(_COLORS)], marker="os^DvP"[i // len(_COLORS) % 6])
            axes.errorbar(x, y, yerr=_arms(error), linestyle="", markersize=8, capsize=3, label=label, **style)
        low, high = min(point.x for point in panel), max(point.x for point in panel)
        if low > 0 and high > 10 * low:
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(NullFormatter())  # else the labels lie over each other in a narrow panel
            if high < 100 * low:
                axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
                axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.margins(x=0.12)
        _dress(axes, "", title, ylabel)
        if _SHARE.search(ylabel):
            axes.set_ylim(-0.02, 1.02)

    return _draw_panels(panels, path, draw, legend_below=True)


def _draw_panels(panels, path, draw: Callable[..., None], legend_below: bool = False) -> pathlib.Path:
    """A figure of `draw(axes, title, panel, place)`; place: label -> its position among the labels of all panels."""
    import matplotlib

    labels = dict.fromkeys(item.label for panel in panels.values() for item in panel)
    place = {label: n for n, label in enumerate(labels)}
    with matplotlib.rc_context(_STYLE):
        figure, grid = _figure(len(panels))
        for axes, (title, panel) in zip(grid, panels.items()):
            draw(axes, title, panel, place)
        if legend_below:
            _legend_below(figure, grid)
        return _save(figure, path)


def _arms(error: float | tuple[float, float]) -> np.ndarray:
    """Lengths of an error bar as matplotlib takes them: [2, 1]."""
    return np.broadcast_to(np.asarray(error, float), 2)[:, None]


def _legend_below(figure, grid) -> None:
    """One legend under all panels."""
    handles: dict[str, Any] = {}
    for axes in grid:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles[label] = handle
    room = 14 * figure.get_figwidth()  # characters of a line, six of them a label's handle and margin
    columns = max(1, min(len(handles), 5, int(room / (max(map(len, handles)) + 6))))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def _figure(panels: int) -> tuple[Any, list[Any]]:
    """A figure and as many axes as panels, two a row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = 1 if panels == 1 else 2
    rows = -(-panels // columns)
    figure = Figure(figsize=(4.6 * columns + (1.6 if panels == 1 else 0), 3.0 * rows + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[panels:]:
        axes.remove()
    return figure, grid[:panels]


def _dress(axes, title: str, xlabel: str, ylabel: str = "") -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(True, color="#e4e4e7", linewidth=0.8)
    axes.set_axisbelow(True)


def _save(figure, path: str | os.PathLike) -> pathlib.Path:
    path = pathlib.Path(path)
    if processes.first():
        figure.savefig(path, dpi=130, metadata={"Software": None})
    return path
