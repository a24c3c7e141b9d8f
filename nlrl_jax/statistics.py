"""Every ±, interval and verdict of the library; nothing else divides a spread by the root of a number.

One convention: **± is the half-width of the 95 % interval of a mean** by Student's t over the units that were drawn at
random and independently (4.30 standard errors for three, 12.7 for two): the seeds of training where something was
trained, otherwise the tasks, positions or games. Values that share a unit (the episodes of a task, the tasks of a
seed, the seeds of a base agent) are averaged first, so that each unit counts once. The 95 % interval of a share of
units that say yes or no is Wilson's, in brackets, which holds where all or none say yes. A difference is paired within
units and is "within noise" if its interval holds 0.

There is no interval, and no ±, of one unit, of values with a nan, or where all values are equal: a spread that was not
seen is not known to be 0. Equal differences have the sign that they show if a sign test says so: from six units on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

LEVEL = 0.95
_EQUAL = 1e-9  # values that differ by less, relative to the largest, differ by rounding


class Estimate(NamedTuple):
    """A mean over units.

    Attributes:
      mean: nan of no units.
      error: its standard error, nan of fewer than two units and of values with a nan; 0 where all are equal.
      units: how many there are.
      is_share: the values are from 0 to 1, of units that say yes or no or of their means.
    """

    mean: float
    error: float
    units: int
    is_share: bool = False

    @property
    def interval(self) -> tuple[float, float]:
        """(low, high) at 95 %, (nan, nan) where there is none."""
        if self._is_binary:
            return wilson(self.mean, self.units)
        half = self.half
        return self.mean - half, self.mean + half

    @property
    def half(self) -> float:
        """Half-width of the t interval, nan where there is none."""
        return quantile(self.units) * self.error if self.error > 0 else math.nan

    @property
    def arms(self) -> tuple[float, float]:
        """Lengths of an error bar (below, above), nan where there is no interval."""
        low, high = self.interval
        return float(np.maximum(self.mean - low, 0)), float(np.maximum(high - self.mean, 0))  # but for rounding

    @property
    def verdict(self) -> str:
        """Of a difference: "above" or "below" 0, "within noise", or "not known" where there is no interval."""
        low, high = self.interval
        if math.isnan(low):
            if self.error == 0 and self.mean == 0:
                return "within noise"
            if self.error != 0 or 2.0 ** (1 - self.units) > 1 - LEVEL:  # the sign test of equal differences
                return "not known"
            low = high = self.mean
        return "above" if low > 0 else "below" if high < 0 else "within noise"

    @property
    def _is_binary(self) -> bool:
        """All values of a share are 0 or 1, exactly where their variance is the largest that their mean allows."""
        largest = self.mean * (1 - self.mean)
        return self.is_share and self.units > 1 and abs(self.error**2 * (self.units - 1) - largest) < _EQUAL

    def text(self, spec: str = ".2f", half: str = "") -> str:
        """ "0.50 ± 0.07", of a share of yes and no "0.50 [0.43, 0.57]", without an interval the mean; "–" of nothing.

        Args:
          spec: format of the mean. half: that of ±; by default the mean's without its sign.
        """
        if not self.units:
            return "–"
        plain, mean = spec.lstrip("+"), format(self.mean, spec)
        if self._is_binary:
            low, high = self.interval
            return f"{mean} [{low:{plain}}, {high:{plain}}]"
        if math.isnan(self.half):
            return f"{mean} (all equal)" if self.error == 0 else mean
        return f"{mean} ± {self.half:{half or plain}}"

    def __str__(self) -> str:
        return self.text()


def estimate(values: Iterable[Any], units: Iterable[Hashable] | None = None, is_share: bool = False) -> Estimate:
    """The mean of values over units.

    Args:
      values: [n], numbers.
      units: [n], the unit of each value; by default each value is a unit.
      is_share: the values are yes or no, or shares.

    Raises:
      ValueError: not as many units as values, or a share outside 0 to 1.
    """
    x = _flat(values)
    if units is not None:
        x = _flat(by_unit(x, units).values())
    if not x.size:
        return Estimate(math.nan, math.nan, 0, is_share)
    if is_share and ((x < 0) | (x > 1)).any():
        raise ValueError(f"a share is from 0 to 1, but there is {x[(x < 0) | (x > 1)][0]:g}")
    mean = float(x.mean())
    if x.size < 2 or not np.isfinite(x).all():
        return Estimate(mean, math.nan, x.size, is_share)
    equal = np.ptp(x) <= _EQUAL * np.abs(x).max()
    return Estimate(mean, 0.0 if equal else float(deviation(x)) / math.sqrt(x.size), x.size, is_share)


def share(yes: int, units: int) -> Estimate:
    """The share of `yes` in `units` units.

    Raises:
      ValueError: more than there are, or fewer than none.
    """
    if not 0 <= yes <= units:
        raise ValueError(f"{yes} of {units} units is not a share")
    return estimate(np.arange(units) < yes, is_share=True)


def paired(a: Iterable[Any], b: Iterable[Any], units: Iterable[Hashable] | None = None) -> Estimate:
    """The mean of a - b over units; a [n] and b [n] stand side by side.

    Raises:
      ValueError: they are not as many.
    """
    a, b = _flat(a), _flat(b)
    if a.size != b.size:
        raise ValueError(f"a paired difference needs as many values on both sides; there are {a.size} and {b.size}")
    return estimate(a - b, units)


def by_unit(values: Iterable[Any], units: Iterable[Hashable]) -> dict[Hashable, float]:
    """The mean of the values of each unit, in the order in which units first come.

    Raises:
      ValueError: not as many units as values.
    """
    values, units = list(values), list(units)
    if len(values) != len(units):
        raise ValueError(f"each value has a unit, but there are {len(values)} values and {len(units)} units")
    rows: dict[Hashable, list[float]] = {}
    for value, unit in zip(values, units, strict=True):
        rows.setdefault(unit, []).append(float(value))
    return {unit: float(np.mean(row)) for unit, row in rows.items()}


def deviation(ys: Any) -> np.ndarray:
    """Standard deviation over runs, which are a sample (n - 1): float [n, ...] -> [...], nan of fewer than two.

    nan is a value that a run does not have.
    """
    ys = np.asarray(ys, float)
    count = np.sum(~np.isnan(ys), axis=0)
    mean = np.nansum(ys, axis=0) / np.maximum(count, 1)
    squares = np.nansum((ys - mean) ** 2, axis=0)
    return np.where(count > 1, np.sqrt(squares / np.maximum(count - 1, 1)), np.nan)


def half_widths(ys: Any) -> np.ndarray:
    """Half-widths of the t intervals of curves: float [n, ...] -> [...], nan as in `deviation`."""
    count = np.sum(~np.isnan(np.asarray(ys, float)), axis=0)
    return np.vectorize(quantile, otypes=[float])(count) * deviation(ys) / np.sqrt(np.maximum(count, 1))


@functools.cache
def quantile(units: int) -> float:
    """How many standard errors ± is: Student's t with units - 1 degrees of freedom at 97.5 %; nan of fewer than two."""
    from scipy.special import stdtrit  # jax requires scipy

    return float(stdtrit(units - 1, (1 + LEVEL) / 2)) if units > 1 else math.nan


def wilson(p: float, n: int) -> tuple[float, float]:
    """Wilson's score interval at 95 % of a share p of n units (Wilson 1927)."""
    from scipy.special import ndtri

    z = float(ndtri((1 + LEVEL) / 2))
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0)


def header(units: str, count: int | None = None, shares: bool = False) -> str:
    """The sentence above a table that explains its ±.

    Args:
      units: their name in the plural and what they are of, e.g. "seeds of training".
      count: how many; None if the table says so itself, row by row.
      shares: it also holds shares of units that say yes or no.
    """
    if count is not None and count < 2:
        return f"No ±: an interval needs two or more {units.split(',')[0]}."
    scope = units if count is None else f"{count} {units}"
    brackets = "; brackets hold the 95 % interval of a share (Wilson)" if shares else ""
    return f"± is the half-width of the 95 % interval of the mean (Student's t) over {scope}{brackets}."


def _flat(values: Iterable[Any]) -> np.ndarray:
    is_array = isinstance(values, Sequence) or hasattr(values, "__array__")
    return np.asarray(values if is_array else list(values), float).ravel()
