"""One builder of tables, bars and costs from tidy rows: (method, unit, metric, value).

A unit is an independent trial: a task, a seed of training, a base agent. Several rows of one unit and metric are
averaged first, so that an interval is always over the units. A run's rows are in RUN_DIR/measurements.csv.
"""

from __future__ import annotations

import csv
import io
import pathlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.files import write_atomically
from nlrl_jax.run import plots, processes
from nlrl_jax.statistics import Estimate, by_unit, estimate

MEASUREMENTS = "measurements.csv"
SHARES = ("success",)  # metrics whose values are yes or no


class Measurement(NamedTuple):
    """A number of a run."""

    method: str
    unit: Hashable
    metric: str
    value: float


class Measurements:
    """The tidy rows of a run, looked up by method and metric.

    Args:
      rows: methods and metrics are shown in the order in which they first come.
    """

    def __init__(self, rows: Iterable[Measurement]):
        self.rows = list(rows)
        self._cells: dict[tuple[str, str], list[Measurement]] = {}
        for row in self.rows:
            self._cells.setdefault((row.method, row.metric), []).append(row)
        self.methods = list(dict.fromkeys(row.method for row in self.rows))
        self.metrics = list(dict.fromkeys(row.metric for row in self.rows))

    def has(self, method: str, metric: str) -> bool:
        """Whether a method has this metric."""
        return (method, metric) in self._cells

    def units(self, method: str, metric: str) -> dict[Hashable, float]:
        """{unit: mean of its values}."""
        rows = self._cells.get((method, metric), [])
        return by_unit([row.value for row in rows], [row.unit for row in rows])

    def mean(self, method: str, metric: str) -> Estimate:
        """The mean over units, with its interval."""
        return estimate(self.units(method, metric).values(), is_share=metric in SHARES)

    def difference(self, method: str, other: str, metric: str) -> Estimate:
        """The mean over the units that both have of one method minus another.

        Raises:
          ValueError: they have no unit in common.
        """
        ours, theirs = self.units(method, metric), self.units(other, metric)
        shared = [unit for unit in ours if unit in theirs]
        if not shared:
            raise ValueError(f"{method} and {other} have no task in common; compare runs with the same --seed")
        return estimate([ours[unit] - theirs[unit] for unit in shared])

    def table(
        self,
        metrics: Mapping[str, str | Callable[[Estimate], str]],
        corner: str = "",
        methods: Sequence[str] | None = None,
        names: Callable[[str], str] = str,
    ) -> list[dict[str, Any]]:
        """A row per method, a column per metric.

        Args:
          metrics: metric -> how its mean is written: a format such as ".2f", or a function of the estimate.
          corner: heading of the first column. names: method -> its name there.
          methods: the rows; by default all methods.
        """
        rows = []
        for method in self.methods if methods is None else methods:
            row: dict[str, Any] = {corner: names(method)}
            for metric, form in metrics.items():
                mean = self.mean(method, metric)
                missing = not self.has(method, metric)
                row[metric] = "" if missing else mean.text(form) if isinstance(form, str) else form(mean)
            rows.append(row)
        return rows

    def bars(
        self, panels: Mapping[str, str], methods: Sequence[str], names: Callable[[str], str] = str
    ) -> dict[str, list[plots.Bar]]:
        """{title: a bar per method}, for `plots.bars`. panels: title -> metric."""
        return {
            title: [self._bar(method, metric, names(method)) for method in methods if self.has(method, metric)]
            for title, metric in panels.items()
        }

    def _bar(self, method: str, metric: str, name: str) -> plots.Bar:
        mean = self.mean(method, metric)
        return plots.Bar(name, mean.mean, mean.arms)

    def costs(
        self, panels: Mapping[str, str], metric: str, names: Callable[[str], str] = str
    ) -> dict[str, list[plots.Point]]:
        """{label of x: a point per method}, for `plots.points`: `metric` against costs. panels: label -> cost."""
        means = {method: self.mean(method, metric) for method in self.methods}
        return {
            label: [
                plots.Point(names(method), self.mean(method, cost).mean, mean.mean, mean.arms)
                for method, mean in means.items()
            ]
            for label, cost in panels.items()
        }

    def write(self, run_dir: pathlib.Path) -> None:
        """Writes measurements.csv. Of several processes the first writes."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(Measurement._fields)
        for method, unit, metric, value in self.rows:
            plain = " ".join(map(str, unit)) if isinstance(unit, tuple) else unit
            writer.writerow([method, plain, metric, float(value)])
        if processes.first():
            write_atomically(run_dir / MEASUREMENTS, text.getvalue())


def or_dash(spec: str) -> Callable[[Estimate], str]:
    """Writes a mean without its interval, and – where there is none."""
    return lambda mean: format(mean.mean, spec) if np.isfinite(mean.mean) else "–"
