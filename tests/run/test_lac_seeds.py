"""The table of several runs of LAC's loop: its unit is the seed of training, not the task."""

import json

import numpy as np
import pytest
from scipy import stats

from nlrl_jax.run import results
from nlrl_jax.run.directory import close_run, open_run
from nlrl_jax.run.reports import lac_seeds
from tests.launch.scripts import refusal, run

WON = {  # run -> play -> successes of its tasks
    0: {"after_0_lac_no_critic": [1, 0, 0, 0], "after_1_lac_no_critic": [1, 1, 0, 0]},
    1: {"after_0_lac_no_critic": [0, 0, 0, 0], "after_1_lac_no_critic": [1, 1, 1, 0]},
    2: {"after_0_lac_no_critic": [1, 1, 0, 0], "after_1_lac_no_critic": [1, 1, 1, 1]},
}


def folders(tmp_path):
    for seed, plays in WON.items():
        open_run(tmp_path / str(seed), {"seed": seed, "lesson": "all"})
        close_run(tmp_path / str(seed))
        (tmp_path / str(seed) / "episodes").mkdir()
        for name, won in {**plays, "round_0": [1, 1], "round_1": [0, 1]}.items():
            episodes = [
                {"task": ["go", 10 * seed + i // 2], "success": bool(x)} for i, x in enumerate(won)
            ]  # twice each
            (tmp_path / str(seed) / "episodes" / f"{name}.json").write_text(json.dumps({"episodes": episodes}))
        row = {
            f"{name}/{key}": x for name in ("teacher", "lac_no_critic") for key, x in (("success", 0.5), ("tasks", 4))
        }
        rounds = [row | {"teacher/tokens": 10.0, "tokens_before": 100.0 * k} for k in range(2)]
        results.write(tmp_path / str(seed), script="iterate_lac", before={"success": 0.5}, after={}, rounds=rounds)
    return [tmp_path / str(seed) for seed in WON]


def test_a_gain_is_over_seeds_that_each_count_once(tmp_path):
    runs = folders(tmp_path)
    first, last = lac_seeds.table(runs)
    gains = [0.25, 0.75, 0.5]  # of the three priors; t = 3.46, where three seeds need 4.30
    assert stats.ttest_1samp(gains, 0).pvalue > 0.05
    half = stats.t.ppf(0.975, 2) * stats.sem(gains)
    assert (
        last["LAC without critic: gain"] == f"+0.500 ± {half:.3f} (within noise)"
        and first["LAC without critic: gain"] == ""
    )
    assert last["LAC without critic"] == f"0.750 ± {stats.t.ppf(0.975, 2) * stats.sem([0.5, 0.75, 1]):.3f}"
    assert last["teacher"] == "0.500 (all equal)"
    assert lac_seeds.table(runs[:1])[1]["LAC without critic: gain"] == "+0.250 (not known)"


def test_only_equal_tasks_are_paired(tmp_path):
    runs = folders(tmp_path)
    plays = [(run, "after_1_lac_no_critic") for run in runs]
    with pytest.raises(ValueError, match="different tasks"):
        lac_seeds.difference(plays, plays[1:] + plays[:1])
    with pytest.raises(ValueError, match="3 and 2 runs"):
        lac_seeds.difference(plays, plays[:2])
    assert np.isnan(lac_seeds.difference(plays, plays).half)


def test_groups_are_compared_by_their_last_priors(tmp_path, capsys):
    a, b, c = folders(tmp_path)
    page = tmp_path / "page.html"
    run("compare", f"LAC={a},{b},{c}", f"again={a},{b},{c}", f"--out={page}")
    lead = "LAC before again, at no more tokens: +0.000 (all equal) (within noise): 1 rounds against 1."
    assert lead in capsys.readouterr().out
    assert "within noise" in page.read_text() and (tmp_path / "page_rounds.png").is_file()
    assert "a seed counts once" in refusal("compare", f"LAC={a},{a}")
