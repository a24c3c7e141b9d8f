"""Rounds of LAC's loop: the unit of several runs is the seed of training, of one run the task."""

import json

from scipy import stats

from nlrl_jax.run import results
from nlrl_jax.run.directory import close_run, open_run
from nlrl_jax.run.reports import lac_rounds
from tests.launch.scripts import refusal, run

WON = {  # seed -> successes on the held-out tasks before and after learning, each task played twice
    0: ([1, 0, 0, 0], [1, 1, 0, 0]),
    1: ([0, 0, 0, 0], [1, 1, 1, 0]),
    2: ([1, 1, 0, 0], [1, 1, 1, 1]),
}


def folders(tmp_path):
    for seed, (before, after) in WON.items():
        folder = tmp_path / str(seed)
        open_run(folder, {"seed": seed, "lesson": "all"})
        close_run(folder)
        (folder / "episodes").mkdir()
        plays = {"after_0_lac_no_critic": before, "after_1_lac_no_critic": after, "round_0": [1, 1], "round_1": [0, 1]}
        for name, won in plays.items():
            episodes = [{"task": ["go", 10 * seed + i // 2], "success": bool(x)} for i, x in enumerate(won)]
            (folder / "episodes" / f"{name}.json").write_text(json.dumps({"episodes": episodes}))
        row = {f"{name}/success": 0.5 for name in ("teacher", "lac_no_critic")}
        row |= {"teacher/tasks": 1, "lac_no_critic/tasks": 2, "teacher/tokens": 10.0}
        rounds = [row | {"tokens_before": 100.0 * k} for k in range(2)]
        results.write(folder, script="iterate_lac", before={"success": 0.5}, after={}, seeds=[seed], rounds=rounds)
    return [tmp_path / str(seed) for seed in WON]


def test_a_gain_is_over_seeds_that_each_count_once(tmp_path):
    runs = folders(tmp_path)
    first, last = lac_rounds.block("LAC", runs).rows
    gains = [0.25, 0.75, 0.5]  # of the three priors; t = 3.46, where three seeds need 4.30
    assert stats.ttest_1samp(gains, 0).pvalue > 0.05
    half = stats.t.ppf(0.975, 2) * stats.sem(gains)
    gain, mean = "LAC without critic: gain", "LAC without critic, 2 held-out tasks"
    assert last[gain] == f"+0.500 ± {half:.3f} (within noise)" and first[gain] == ""
    assert last[mean] == f"0.750 ± {stats.t.ppf(0.975, 2) * stats.sem([0.5, 0.75, 1]):.3f}"
    assert last["teacher, 1 fresh tasks"] == "0.500 (all equal)" and last["tokens before"] == "100"
    alone = lac_rounds.block("LAC", runs[:1])
    assert alone.rows[1][gain].startswith("+0.250 ± ") and "over tasks" in alone.note


def test_groups_are_compared_by_their_last_priors(tmp_path, capsys):
    a, b, c = folders(tmp_path)
    page = tmp_path / "page.html"
    run("compare", f"LAC={a},{b},{c}", f"again={a},{b},{c}", f"--out={page}")
    lead = "LAC before again, at no more tokens: +0.000 (all equal) (within noise): 1 rounds against 1."
    assert lead in capsys.readouterr().out
    assert "within noise" in page.read_text() and (tmp_path / "page_rounds.png").is_file()
    assert "a seed counts once" in refusal("compare", f"LAC={a},{a}")
    assert "different tasks" in refusal("compare", f"LAC={a},{b}", f"again={a},{c}", f"--out={page}")


def test_a_game_without_success_is_measured_by_its_reward():
    episodes = [{"task": ["", i], "success": False, "reward": float(i), "moves": 3} for i in range(4)]
    play = {"measure": "reward", "tokens": {"read": 300, "written": 100}, "episodes": episodes}
    rows = [lac_rounds.row_of({lac_rounds.TEACHER: play, "lac": play}, {"tokens": 1.0}, 0.0)] * 2
    assert lac_rounds.measured(rows) == "reward" and lac_rounds.players(rows[0]) == ["lac", "teacher"]
    assert rows[0]["lac/reward"] == 1.5 and rows[0]["teacher/tokens"] == 100 and rows[0]["played_tokens"] == 400
    assert lac_rounds.headline(rows, "lac") == "LAC 1.500 -> 1.500, LAC 1.500 -> 1.500"
