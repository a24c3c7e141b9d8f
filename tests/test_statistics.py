"""Errors, intervals and verdicts against scipy.stats and by hand, and that nothing else computes one."""

import math
import pathlib
import re

import numpy as np
import pytest
from scipy import stats

from nlrl_jax import statistics
from nlrl_jax.statistics import Estimate, by_unit, deviation, estimate, half_widths, header, paired, share

ROOT = pathlib.Path(__file__).parent.parent
OURS = ("nlrl_jax", "launch", "benchmarks", "envs")


@pytest.mark.parametrize("n", [2, 3, 5, 240])
def test_mean_error_and_interval_are_scipys(n):
    x = np.random.default_rng(n).normal(3.0, 2.0, n)
    found = estimate(x)
    assert (found.mean, found.units) == (pytest.approx(x.mean()), n)
    assert found.error == pytest.approx(stats.sem(x))
    assert found.interval == pytest.approx(stats.t.interval(0.95, n - 1, x.mean(), stats.sem(x)))
    assert found.arms == pytest.approx((found.half, found.half))


def test_three_seeds_by_hand():
    """1, 2, 3: deviation 1, standard error 1 / sqrt(3), t = 4.3027."""
    found = estimate([1.0, 2.0, 3.0])
    assert [statistics.quantile(n) for n in (2, 3)] == pytest.approx([12.7062, 4.3027], abs=1e-4)
    assert found.half == pytest.approx(4.3027 / 3**0.5, abs=1e-4) and str(found) == "2.00 ± 2.48"
    assert found.text("+.3f") == "+2.000 ± 2.484" and found.text(".4g", ".2g") == "2 ± 2.5"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shift", [0.0, 0.8, -2.0])
def test_verdicts_are_those_of_the_paired_t_test(seed, shift):
    a, b = np.random.default_rng(seed).normal(0, 1, (2, 6))
    p = stats.ttest_rel(a + shift, b).pvalue
    found = paired(a + shift, b)
    assert (found.verdict in ("above", "below")) == (p < 0.05)
    assert found.verdict in ("within noise", "above" if found.mean > 0 else "below")


def test_two_standard_errors_of_three_seeds_are_noise():
    """t = 2 with two degrees of freedom: p = .18."""
    x = np.array([-1.0, 0.0, 1.0]) + 2 / 3**0.5
    assert x.mean() / stats.sem(x) == pytest.approx(2)
    assert stats.ttest_1samp(x, 0).pvalue == pytest.approx(0.18, abs=0.005)
    assert estimate(x).verdict == "within noise"
    assert estimate(x + 2.4 / 3**0.5).verdict == "above" and estimate(-x - 2.4 / 3**0.5).verdict == "below"  # t = 4.4


def test_each_unit_counts_once():
    """Tasks that were played several times, and seeds whose tasks share one trained model."""
    assert by_unit([1, 0, 1, 1], ["a", "b", "a", "b"]) == {"a": 1.0, "b": 0.5}
    assert estimate([True, True, True, False], ["a", "a", "a", "b"]) == (0.5, 0.5, 2, False)
    rng = np.random.default_rng(0)
    gains = rng.normal([[0.1], [0.3], [0.2]], 0.5, (3, 80))  # three priors, 80 tasks each
    seeds = np.repeat([7, 8, 9], 80)
    assert estimate(gains, seeds) == pytest.approx(estimate(gains.mean(axis=1)))
    assert estimate(gains, seeds).units == 3
    ours, theirs = rng.normal(size=(2, 3, 80))
    assert paired(ours, theirs, seeds) == pytest.approx(paired(ours.mean(axis=1), theirs.mean(axis=1)))


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="as many values on both sides; there are 2 and 3"):
        paired([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="2 values and 1 units"):
        estimate([1, 2], ["a"])
    with pytest.raises(ValueError, match="from 0 to 1, but there is 1.5"):
        estimate([0.5, 1.5], is_share=True)
    with pytest.raises(ValueError, match="3 of 2 units"):
        share(3, 2)


@pytest.mark.parametrize(
    "values, text, verdict",
    [
        ([], "–", "not known"),
        ([0.25], "0.25", "not known"),  # one seed: no ±
        ([0.0], "0.00", "not known"),
        ([0.5, 0.5, 0.5], "0.50 (all equal)", "not known"),  # a spread that was not seen
        ([0.1 + 0.2, 0.3, 0.3], "0.30 (all equal)", "not known"),  # equal but for rounding
        ([0.5] * 6, "0.50 (all equal)", "above"),  # the sign test: 2 / 2^6 < .05
        ([-0.5] * 6, "-0.50 (all equal)", "below"),
        ([0.5] * 5, "0.50 (all equal)", "not known"),  # 2 / 2^5 > .05
        ([0.0] * 9, "0.00 (all equal)", "within noise"),
        ([1.0, math.nan, 2.0], "nan", "not known"),
        ([1.0, math.inf, 2.0], "inf", "not known"),
    ],
)
def test_without_an_interval_there_is_no_plus_minus(values, text, verdict):
    found = estimate(values)
    assert (str(found), found.verdict, found.units) == (text, verdict, len(values))
    assert math.isnan(found.half) and all(map(math.isnan, found.interval)) and all(map(math.isnan, found.arms))


@pytest.mark.parametrize("yes, n", [(0, 50), (50, 50), (1, 50), (33, 50), (0, 2), (986, 1200)])
def test_the_interval_of_a_share_is_wilsons(yes, n):
    found = share(yes, n)
    theirs = stats.binomtest(yes, n).proportion_ci(0.95, method="wilson")
    assert found.interval == pytest.approx((theirs.low, theirs.high)) and found.units == n
    assert found.text(".3f") == f"{yes / n:.3f} [{theirs.low:.3f}, {theirs.high:.3f}]"
    assert found == estimate([True] * yes + [False] * (n - yes), is_share=True)


def test_shares_that_are_no_yes_or_no():
    assert math.isnan(share(1, 1).half) and str(share(1, 1)) == "1.00" and str(share(0, 0)) == "–"
    means = [0.5, 1.0, 0.0, 0.75]  # of tasks that were played several times
    assert estimate(means, is_share=True).interval == pytest.approx(estimate(means).interval)
    assert str(estimate([0.5, 0.5], is_share=True)) == "0.50 (all equal)"


def test_curves_have_the_interval_of_each_point():
    ys = np.array([[1.0, 1, np.nan, 2], [3.0, np.nan, 7, 2], [8.0, 3, np.nan, 2]])
    np.testing.assert_allclose(deviation(ys), [ys[:, 0].std(ddof=1), 2**0.5, np.nan, 0])
    assert math.isnan(deviation([0.5])) and np.isnan(half_widths(np.empty((0, 2)))).tolist() == [True, True]
    wide = [estimate(ys[:, 0]).half, estimate([1.0, 3.0]).half, np.nan, 0]
    np.testing.assert_allclose(half_widths(ys), wide)


def test_headers_name_the_unit_and_how_many():
    assert header("seeds of training", 3) == (
        "± is the half-width of the 95 % interval of the mean (Student's t) over 3 seeds of training."
    )
    assert "over the tasks; brackets hold" in header("the tasks", shares=True)
    assert header("seeds", 1) == "No ±: an interval needs two or more seeds."


def test_what_is_stored_gives_the_interval_again():
    found = estimate([True, False, True, True], is_share=True)
    assert Estimate(found.mean, found.error, found.units, True).interval == found.interval


# A spread over the root of a number, the deviation of a share, a ± of one's own, or scipy's.
ERROR = re.compile(
    r"(?:std|deviation|spread|var|sem)\b[^\n]*[/*] [^\n]*(?:sqrt\(|\*\* ?-?0\.5)"
    r"|sqrt\([^\n]*(?:std|deviation|spread|var|sem)\b[^\n]* / \w"
    r"|sqrt\([^\n]*(\w+) \* \(1(?:\.0)? - \1\)"
    r"|± ?\{|scipy(?:\.| import )stats"
)


def test_nothing_else_computes_an_error():
    files = [path for place in OURS for path in sorted((ROOT / place).rglob("*.py"))]
    assert len(files) > 200
    assert {str(path.relative_to(ROOT)) for path in files if ERROR.search(path.read_text())} == {
        "nlrl_jax/statistics.py"
    }


@pytest.mark.parametrize(
    "source",
    [
        "x.std(ddof=1) / np.sqrt(len(x))",
        "np.std(x) / max(1, len(x)) ** 0.5",
        "deviation(ys) * (2 / len(ys) ** 0.5)",
        "spread * n ** -0.5",
        "math.sqrt(np.var(x) / n)",
        "float(np.sqrt(accuracy * (1 - accuracy) / max(answered, 1)))",
        "f'{x.mean():.2f} ± {x.std():.2f}'",
        "from scipy.stats import sem",
        "from scipy import stats",
    ],
)
def test_errors_are_found_where_they_are(source):
    assert ERROR.search(source)


@pytest.mark.parametrize(
    "source", ["(x - x.mean()) / x.std()", "q / math.sqrt(head_dim)", "'0.34 ± 0.18'", "a * jax.lax.rsqrt(moments.var)"]
)
def test_other_roots_are_left_alone(source):
    assert not ERROR.search(source)
