"""ULTRA's tables by hand, the page's texts, and findings as they are kept."""

import pathlib

import numpy as np
import pytest

from nlrl_jax.algorithms.analyst import CriticalState, Findings, load, save
from nlrl_jax.roles.trajectories import Verdict
from nlrl_jax.run.reports import ultra as report
from nlrl_jax.run.ultra.stages import SCORES


def refined(scores, continuous=True):
    """Methods with these scores: {method: [bases, seeds]}, the same by both measures."""
    scores = {name: dict.fromkeys(SCORES, np.array(values)) for name, values in scores.items()}
    num, seeds = next(iter(scores.values()))["greedy"].shape
    base = report.Base(pathlib.Path("none"), range(seeds), dict.fromkeys(SCORES, 0.0), {})
    return report.Refined(scores, [base] * num, 1, continuous, has_analyst=False)


def test_the_improvement_is_over_the_mean_of_the_baselines_that_ran():
    hopper = {"PPO": 3572, "RICE": 3756, "LIR": 3779, "ULTRA-A": 3842, "ULTRA-R": 3891, "ULTRA-RA": 3987}  # the paper's
    scores = {name: [[score - 1.0, score + 1.0]] for name, score in hopper.items()}
    rows = lambda *names: refined({name: scores[name] for name in names}).tables()[0]
    last = rows(*hopper)[-1]
    assert last["method"] == "ULTRA-RA over the mean of PPO, RICE, LIR"
    assert last["mean action"] == last["sampled action"] == "+7.7 %"
    last = rows("RICE", "ULTRA-RA")[-1]
    assert last["method"] == "ULTRA-RA over the mean of RICE" and last["mean action"] == "+6.2 %"
    assert rows("ULTRA-RA")[-1]["method"] == rows("PPO", "ULTRA-RA", "RICE")[-2]["method"] == "ULTRA-RA"
    scores["PPO"] = [[-1.0, 1.0]]  # a share of 0, or of less, says nothing
    assert rows(*hopper)[-1]["method"] == "ULTRA-RA"


def test_a_giant_reply_is_shortened_on_the_page():
    reply = "because " * 10**5
    critical = CriticalState(0, Verdict(3, True, None, "why"), np.zeros(2), 1, {1: 0.5}, {1: reply})
    parts = dict(report.exchange_on(critical, str)["parts"])
    text = parts["reward of 1 (taken)"]
    assert len(text) < 1.1 * report.LONGEST and text.endswith(f"({8 * 10**5 - report.LONGEST:,} more characters)")
    assert report.shortened("x" * report.LONGEST) == "x" * report.LONGEST


@pytest.mark.parametrize(
    "num, gains, text",
    [
        (3, [[1.0, 3.0], [4.0, 4.0], [5.0, 7.0]], "+4.000 ± 4.968 (within noise)"),  # 3.5 errors, where t is 4.3
        (3, [[1.0, 3.0], [3.0, 3.0], [4.0, 4.0]], "+3.000 ± 2.484 (above)"),
        (3, [[90.0, 90.0], [110.0, 110.0], [100.0, 100.0]], "+100 ± 25 (above)"),
        (1, [[1.0, 3.0]], "+2 ± 13 (within noise)"),  # the seeds of one agent
        (1, [[5.0]], "+5.000 (not known)"),
    ],
)
def test_a_gain_is_of_the_base_agents_means_and_paired(num, gains, text):
    ppo = np.array([[100.0, 110.0], [200.0, 190.0], [300.0, 330.0]])[:num, : len(gains[0])]
    found = refined({"PPO": ppo, "ULTRA-RA": ppo + gains})
    assert found.tables()[0][2]["over PPO"] == text and found.tables()[0][1]["over PPO"] == ""
    assert found.last_line().endswith(text) and refined({"PPO": ppo}).last_line() == ""
    assert found.tables()[0][1]["mean action"] == {(1, 2): "105 ± 64", (1, 1): "100", (3, 2): "205 ± 262"}[ppo.shape]


@pytest.mark.parametrize("verdict", [Verdict(7, True, (0.5, -1.0), "why"), Verdict(7, True, None, "", judged=False)])
def test_findings_are_read_as_they_were_written(tmp_path, verdict):
    state = CriticalState(
        3, verdict, np.array([1.0, 2.0], np.float32), (1.0, 0.25), {(1.0, 0.25): -0.5}, {(1.0, 0.25): "text"}
    )
    save(Findings([state], ["analysis"], {"calls": 1}, "1. Do better."), tmp_path / "f.json")
    states, analyses, counts, strategies = load(tmp_path / "f.json")
    assert states[0]._replace(observation=0) == state._replace(observation=0)
    np.testing.assert_array_equal(states[0].observation, state.observation)
    assert analyses == ["analysis"] and counts == {"calls": 1} and strategies == "1. Do better."
    old = (tmp_path / "f.json").read_text().replace('"judged": false, ', "").replace('"judged": true, ', "")
    (tmp_path / "old.json").write_text(old)  # from before there was the field
    assert load(tmp_path / "old.json").states[0].verdict == verdict._replace(judged=True)


@pytest.mark.parametrize("text", ['{"states": [{}]}', '{"states": [], "analyses": [], "counts": {"x": NaN}}'])
def test_a_file_that_holds_no_findings_is_named(tmp_path, text):
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(ValueError, match="does not hold an analyst's findings"):
        load(tmp_path / "f.json")
