"""One builder of tables, bars and costs from tidy rows: (method, unit, metric, value).

A unit is an independent trial: a task, a seed of training, a base agent. Several rows of one unit and metric are
averaged first, so that an interval is always over units. The rows of a run are in RUN_DIR/measurements.csv.
"""

from __future__ import annotations

import csv
import io
import pathlib
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.files import write_atomically
from nlrl_jax.run import processes
from nlrl_jax.run.plots import Bar, Point, Series
from nlrl_jax.statistics import Estimate, by_unit, estimate

MEASUREMENTS = "measurements.csv"
MISSING = "–"


class Measurement(NamedTuple):
    """A number of a run."""

    method: str
    unit: Hashable
    metric: str
    value: float


class Column(NamedTuple):
    """A column of a table.

    Attributes:
      metric: whose mean it shows.
      spec: format of the mean; "" is whole numbers from 10 on, else three digits.
      interval: whether ± follows.
      baseline: a method that the column shows the difference to, unit by unit, with its verdict; "" for the mean.
    """

    metric: str
    spec: str = ".2f"
    interval: bool = True
    baseline: str = ""


class Measurements:
    """The tidy rows of a run, looked up by method and metric.

    Args:
      rows: methods and metrics are shown in the order in which they first come.
      shares: metrics whose values are yes or no.
      title: method -> its name in tables and pictures.
    """

    def __init__(self, rows: Iterable[Measurement], shares: Collection[str] = (), title: Callable[[str], str] = str):
        self.rows, self.shares, self.title = list(rows), shares, title
        self._cells: dict[tuple[str, str], list[Measurement]] = {}
        for row in self.rows:
            self._cells.setdefault((row.method, row.metric), []).append(row)
        self.methods = list(dict.fromkeys(row.method for row in self.rows))
        self.metrics = list(dict.fromkeys(row.metric for row in self.rows))

    def units(self, method: str, metric: str) -> dict[Hashable, float]:
        """{unit: mean of its values}, {} where the method does not have the metric."""
        rows = self._cells.get((method, metric), [])
        return by_unit([row.value for row in rows], [row.unit for row in rows])

    def mean(self, method: str, metric: str) -> Estimate:
        """The mean over units, with its interval."""
        return estimate(self.units(method, metric).values(), is_share=metric in self.shares)

    def pairs(self, method: str, baseline: str, metric: str) -> list[tuple[float, float]]:
        """The values of two methods on the units that both have.

        Raises:
          ValueError: there is none.
        """
        values, references = self.units(method, metric), self.units(baseline, metric)
        shared = [(value, references[unit]) for unit, value in values.items() if unit in references]
        if not shared:
            raise ValueError(f"{method} and {baseline} have no task in common; compare runs with the same --seed")
        return shared

    def difference(self, method: str, baseline: str, metric: str) -> Estimate:
        """The mean of one method minus another, unit by unit; raises as `pairs`."""
        return estimate([value - reference for value, reference in self.pairs(method, baseline, metric)])

    def table(
        self, columns: Mapping[str, Column], corner: str = "", methods: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """A row per method. Columns whose metric no method has are left out.

        Args:
          columns: heading -> what it shows. corner: heading of the methods.
          methods: the rows; all by default.
        """
        columns = {heading: column for heading, column in columns.items() if column.metric in self.metrics}
        rows = []
        for method in self.methods if methods is None else methods:
            rows.append({corner: self.title(method)} | {name: self.cell(method, c) for name, c in columns.items()})
        return rows

    def cell(self, method: str, column: Column) -> str:
        """What a column shows of a method: "0.50 ± 0.07", of a difference "+0.50 ± 0.57 (within noise)"."""
        metric, spec, interval, baseline = column
        if method == baseline:
            return ""
        if not all(self.units(name, metric) for name in (method, baseline) if name):
            return MISSING
        if baseline:
            difference = self.difference(method, baseline, metric)
            spec = spec or _spec(difference.half if difference.half > 0 else difference.mean)
            return f"{difference.text(f'+{spec}')} ({difference.verdict})".replace(
                ") (", ", "
            )  # "(all equal, not known)"
        mean = self.mean(method, metric)
        spec = spec or _spec(mean.mean)
        return mean.text(spec) if interval else format(mean.mean, spec)

    def bars(self, panels: Mapping[str, str], methods: Sequence[str]) -> dict[str, list[Bar]]:
        """{title: a bar per method}, for `plots.bars`. panels: title -> metric."""
        drawn: dict[str, list[Bar]] = {}
        for title, metric in panels.items():
            means = {method: self.mean(method, metric) for method in methods}
            drawn[title] = [Bar(self.title(name), mean.mean, mean.arms) for name, mean in means.items() if mean.units]
        return drawn

    def curve(self, label: str, metric: str, x: Sequence[float]) -> Series:
        """A metric along the methods, a row per unit, at those that have it. x: [methods]."""
        values = {at: self.units(method, metric) for method, at in zip(self.methods, x, strict=True)}
        values = {at: units for at, units in values.items() if units}
        names = dict.fromkeys(unit for units in values.values() for unit in units)
        ys = np.array([[units.get(name, np.nan) for units in values.values()] for name in names])
        return Series(label, list(values), ys)

    def costs(self, panels: Mapping[str, str], metric: str) -> dict[str, list[Point]]:
        """{label of x: a point per method}, for `plots.points`: a metric against costs. panels: label -> cost."""
        drawn: dict[str, list[Point]] = {label: [] for label in panels}
        for method in self.methods:
            mean = self.mean(method, metric)
            for label, cost in panels.items():
                drawn[label].append(Point(self.title(method), self.mean(method, cost).mean, mean.mean, mean.arms))
        return drawn

    def headline(self, metric: str, method: str, rivals: Sequence[str], spec: str = ".2f") -> str:
        """A metric of a method, and that of its best rival: "success: 0.50 with LAC, 0.00 with ReAct"."""
        line = f"{metric}: {self.mean(method, metric).mean:{spec}} with {self.title(method)}"
        if not rivals:
            return line
        best = max(rivals, key=lambda name: self.mean(name, metric).mean)
        verdict = self.difference(method, best, metric).verdict
        noise = "" if verdict in ("above", "below") else f" ({verdict})"
        return f"{line}, {self.mean(best, metric).mean:{spec}} with {self.title(best)}{noise}"

    def write(self, run_dir: pathlib.Path) -> None:
        """Writes measurements.csv. Of several processes the first writes."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(Measurement._fields)
        for method, unit, metric, value in self.rows:
            parts = unit if isinstance(unit, tuple) else (unit,)
            writer.writerow([method, " ".join(map(str, parts)), metric, float(value)])
        if processes.first():
            write_atomically(run_dir / MEASUREMENTS, text.getvalue())


def rounded(number: float) -> str:
    """A number as text: whole from 10 on, else with three digits."""
    return format(number, _spec(number))


def _spec(size: float) -> str:
    return ".0f" if abs(size) >= 10 else ".3f"
