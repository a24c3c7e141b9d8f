"""Numbers and page of LAC runs: checked on numbers by hand and on records of a scripted model."""

import json
import math

import numpy as np
import pytest

from nlrl_jax.backends.usage import Usage
from nlrl_jax.run.reports import lac as page
from nlrl_jax.run.reports import lac_q as q_values
from nlrl_jax.run.reports import lac_tables as tables
from nlrl_jax.run.reports.lac_stories import stories
from tests.run.lac.scripted_results import finished
from tests.run.test_report import HOSTILE, Page

NAMES = ("lac", "lac_no_critic", "critic_only", "react_think", "rap")


def results(*names):
    return {name: finished(name) for name in names or NAMES}


def episode(success, task=("", 0), q=(), moves=3, optimal=2, **record):
    """An episode whose chosen action, the second of two candidates, has these Q-values."""
    thinking = [{"candidates": ["a", "b"], "q": [0.0, value], **record} for value in q]
    steps = [["b", "seen", ""] for _ in q]
    return {
        "task": list(task), "goal": "g", "observation": "o", "note": "", "steps": steps, "success": success,
        "reward": float(success), "moves": len(q) or moves, "optimal": optimal, "thinking": thinking, "boards": [],
    }  # fmt: skip


def method(episodes, name="lac"):
    counts = {"problems": {}, "calls": {"policy": 4}, "tokens": {"read": 300, "written": 100}}
    return {"method": name, "seconds": 8.0, "episodes": episodes, **counts}


def test_summary():
    kinds = [("x", True, 4), ("x", False, 9), ("y", True, 6), ("y", True, 2)]
    episodes = [episode(won, (kind, i), moves=moves) for i, (kind, won, moves) in enumerate(kinds)]
    found = tables.summarize(method(episodes))
    assert found["success"] == 0.75 and found["success_se"] == pytest.approx(np.std([1, 0, 1, 1], ddof=1) / 2)
    assert found["by_mission"] == {"x": [0.5, 0.5, 2], "y": [1.0, 0.0, 2]}
    assert (found["steps"], found["steps_of_successes"], found["above_optimal"]) == (21 / 4, 4, 2)
    assert (found["tokens"], found["seconds"], found["tasks"]) == (100, 2, 4)
    lost = tables.summarize(method([episode(False)]))
    assert math.isnan(lost["steps_of_successes"]) and math.isnan(lost["success_se"])
    unknown = method([episode(True, optimal=-1)])
    assert math.isnan(tables.summarize(unknown)["above_optimal"])
    assert "above the optimum" not in tables.cost_table({"lac": unknown})[0]


def test_a_game_without_success_shows_its_return(tmp_path):
    made = {
        name: {**method([{**episode(False, ("", i)), "reward": reward + i} for i in range(4)], name), "score": "return",
               "measure": "reward"}
        for name, reward in (("lac", 1.0), ("react", 0.5), ("lac_no_critic", 0.0))
    }  # fmt: skip
    assert tables.line_of(made["lac"]).startswith("return 2.500 ± ")
    (first, *_), (compared, other, _) = tables.main_table(made), tables.comparison_table(made)
    assert first == {"": "LAC", "all (4)": "2.50 ± 2.05"} and compared["return"] == "2.50 ± 2.05"
    assert other["minus LAC's"] == "-0.50 (all equal, not known)"
    assert not {"success", "only it solved"} & set(other)
    assert tables.cost_table(made)[0]["return"] == "2.50" and tables.summarize(made["lac"])["by_mission"][""][0] == 2.5
    assert page.headline(made) == "return: 2.50 with LAC, 2.00 with ReAct, no thoughts (not known)"
    (told,) = stories(made)
    assert told["outcome"].startswith("return 1, ") and told["success"] is None
    page.write(tmp_path, "m", {"game": "snake"}, made, Usage())
    text = (tmp_path / "report.html").read_text()
    assert "Mean return" in text and "tasks solved" not in text and "failure" not in text


def test_games_with_a_score_show_its_mean():
    made = method([{**episode(won, ("", i)), "reward": reward, "invalid": i} for i, (won, reward) in enumerate(
        [(True, 1.0), (False, 0.5), (False, 0.0)]
    )])  # fmt: skip
    (row,) = tables.main_table({"lac": {**made, "score": "score"}})
    assert row["all (3)"] == "0.33 [0.06, 0.79]" and row["mean score"] == "0.50 ± 1.24"
    assert tables.cost_table({"lac": made})[0]["invalid moves"] == "1.0"
    none = {**made, "episodes": [{**one, "reward": 0.0} for one in made["episodes"]]}
    (_, row) = tables.comparison_table({"lac": {**made, "score": "score"}, "rap": none})
    assert row["minus LAC's"] == "+0.00 (all equal, within noise)"
    assert row["mean score minus LAC's"] == "-0.50 ± 1.24 (within noise)"
    assert "mean score" not in tables.main_table({"lac": {**made, "score": ""}})[0]


def test_thoughts_are_part_of_the_move_they_precede():
    made = finished("react_think")["episodes"][0]
    turns = q_values.turns(made)
    assert len(turns) == made["moves"] < len(made["steps"])
    assert turns[0].thoughts == ("<b>which</b> way?",) and turns[0].action == "left" and turns[0].result == "at 0"
    lac = q_values.turns(finished("lac")["episodes"][0])
    assert [(turn.observation, turn.action, turn.result) for turn in lac] == [
        ("at 1", "right", "at 2"),
        ("at 2", "right", "at 3"),
    ]
    assert "at 2" in lac[1].note and lac[1].board.splitlines()[1] == "..P.." and lac[0].taken is not None


def paired(first, second):
    """(the difference of two methods, tasks that only one of them solved)."""
    numbers = tables.measurements({"lac": first, "rap": second})
    (_, row) = tables.comparison_table({"lac": first, "rap": second})
    return numbers.difference("lac", "rap", "success"), (row["only LAC solved"], row["only it solved"])


def test_paired_difference():
    outcomes = [(1, 0)] * 6 + [(0, 1)] * 2 + [(1, 1)] * 4 + [(0, 0)] * 4
    side = lambda which, shift=0: method([episode(bool(o[which]), ("", i + shift)) for i, o in enumerate(outcomes)])
    difference, only = paired(side(0), side(1))
    assert only == (6, 2) and difference.mean == 0.25
    assert difference.error == pytest.approx(np.std([1] * 6 + [-1] * 2 + [0] * 8, ddof=1) / 4)
    assert difference.verdict == "within noise" and difference.text("+.2f") == "+0.25 ± 0.36"
    assert paired(side(0, shift=12), side(1))[0].units == 4  # the tasks 12 to 15 of both
    with pytest.raises(ValueError, match="no task in common"):
        paired(side(0, shift=99), side(1))


def test_a_task_counts_once_however_often_it_was_played():
    side = lambda *won: method([episode(bool(w), ("", i)) for i, w in won])
    often, other = side((0, 1), (0, 1), (0, 0), (1, 0)), side((0, 0), (1, 0), (1, 1))
    found = tables.summarize(often)
    assert (found["success"], found["tasks"]) == (pytest.approx(1 / 3), 2)
    assert found["by_mission"][""] == pytest.approx([1 / 3, 1 / 3, 2])
    difference, only = paired(often, other)
    assert difference[:3] == pytest.approx(((2 / 3 - 1 / 2) / 2, (2 / 3 + 1 / 2) / 2, 2)) and only == (1, 1)


def test_q_with_time():
    episodes = [
        episode(True, q=(0, 1, 2)),
        episode(True, ("", 1), q=(0, 5, 1, 3)),
        episode(True, q=(2, 1)),  # too short
        episode(True, q=(1, 1, 1)),  # constant
        episode(False, q=(3, 2, 1, 0)),
    ]
    second = np.corrcoef(range(4), (0, 5, 1, 3))[0, 1]
    half, std = 12.7062 * (1 - second) / 2, np.std([1, second], ddof=1)
    (row,) = q_values.correlation_table({"lac": method(episodes), "react": method([episode(True)], "react")})
    assert row == {
        "correlation with time": "LAC: Q", "successful episodes": f"{(1 + second) / 2:+.2f} ± {half:.2f}",
        "failed episodes": "-1.00", "successful: deviation, tasks": f"{std:.2f}, 2", "failed: deviation, tasks": "–, 1",
    }  # fmt: skip
    curves = q_values.q_curves(method(episodes), points=3)
    np.testing.assert_allclose(curves["successful"], [[0, 1, 2], [0, 3, 3], [1, 1, 1]])
    np.testing.assert_allclose(curves["failed"], [[3, 1.5, 0]])
    assert q_values.q_curves(method([]))["failed"].shape == (0, 11)
    stored = json.loads(json.dumps(episode(True, q=(0.0, 1.0, "-inf", 2.0))))
    assert q_values.q_along(stored).tolist() == [0, 1, 2]  # infinite ones are left out
    made = episode(True, q=(0, 1, 2))
    for record, p in zip(made["thinking"], (0.3, 0.2, 0.1)):
        record["log_good"] = [0.0, math.log(p)]
    good = q_values.correlation_table({"lac": method([made])})[1]
    assert good["correlation with time"] == "LAC: P(GOOD)" and good["successful episodes"] == "-1.00"


def test_confidence_cases():
    log = lambda *p: np.log(p).tolist()
    episodes = [  # the second action is taken
        episode(True, q=(2.0,), log_prior=log(0.4, 0.6), improved=[0.1, 0.9]),
        episode(True, q=(0.0,), log_prior=log(0.1, 0.3), improved=[0.2, 0.8]),  # Q ties: it agrees
        episode(True, q=(-1.0,), log_prior=log(0.2, 0.8), improved=[0.4, 0.6]),
        episode(True, q=(3.0,), log_prior=log(0.7, 0.3), improved=[0.3, 0.7]),
    ]
    both, prior, critic, neither = q_values.confidence_table(method(episodes))
    assert [row["share"] for row in (both, prior, critic, neither)] == ["50.0%", "25.0%", "25.0%", "0.0%"]
    sigmoid = lambda x: 1 / (1 + math.exp(-x))
    assert (both["prior"], both["improved"]) == ("0.35", "0.70") and both["decisions"] == 2
    assert both["Q"] == f"{(2 * sigmoid(2) - 1) / 2:.2f}" and prior["Q"] == f"{2 * sigmoid(1) - 1:.2f}"
    assert critic["prior"] == "0.40" and neither["Q"] == "–"
    assert q_values.confidence_table(finished("rap")) == q_values.confidence_table(finished("lac_no_critic")) == []


def test_tables_of_a_run():
    found = results()
    main = tables.main_table(found)
    assert [list(row.values()) for row in main[:2]] == [
        ["LAC", "0.50 [0.19, 0.81]", "1.00 [0.44, 1.00]", "0.00 [0.00, 0.56]"],
        ["LAC without critic", "0.00 [0.00, 0.39]", "0.00 [0.00, 0.56]", "0.00 [0.00, 0.56]"],
    ]
    assert list(main[0]) == ["", "all (6)", "open (3)", "muddy (3)"]
    others = {row[""]: row for row in tables.comparison_table(found)}
    assert list(others) == ["LAC", "LAC without critic", "critic only", "ReAct", "RAP"]
    assert (
        others["ReAct"]["minus LAC's"] == "-0.50 ± 0.57 (within noise)" and others["LAC"]["minus LAC's"] == ""
    )  # p = .08
    assert tables.comparison_table(results("lac")) == tables.comparison_table(results("rap", "react_think")) == []
    alone = {table.title for table in page.tables(results("react_think"))}  # no LAC, no Q-values
    assert {"Success", "Cost"} <= alone and not {"Against LAC", "Q along time"} & alone
    costs = {row["per task"]: row for row in tables.cost_table(found)}
    assert costs["LAC"]["moves of successes"] == "2.0" and costs["RAP"]["moves of successes"] == "–"
    assert page.headline(found) == "success: 0.50 with LAC, 0.00 with ReAct (within noise)"
    assert (
        page.headline(results("lac", "critic_only")) == "success: 0.50 with LAC, 0.50 with critic only (within noise)"
    )
    assert page.headline(results("rap")) == "success: 0.00 with RAP"


def test_the_first_task_of_each_kind_is_shown():
    shown, missed = stories(results())
    assert (shown["title"], missed["title"]) == ("LAC on open", "LAC on muddy")
    assert shown["success"] and not missed["success"] and shown["outcome"].startswith("success, 2 moves, at best 2")
    assert [one["title"] for one in stories(results("react_think"))] == ["ReAct on open", "ReAct on muddy"]
    assert stories({}) == []
    first = shown["turns"][0]
    assert first["open"] and not shown["turns"][1]["open"] and ("not the prior's best", "action") in first["chips"]
    bars = {row["action"]: row["bars"] for row in first["candidates"]}
    assert [bar["text"] for bar in bars["left"]] == ["0.60", "-2.00", "0.40"]
    assert bars["left"][0]["best"] and bars["right"][1]["best"] and not bars["right"][0]["best"]
    assert [(bar["left"], bar["width"]) for bar in bars["left"]] == [(0, 60.0), (0.0, 50.0), (0, 39.6)]
    assert [leaf[0][0] for _, leaves in first["futures"] for leaf in leaves] == ["left", "right", "wait"]
    assert shown["end"] == "at 3"


def usage():
    ledger = Usage()
    ledger.add("policy", calls=1000)
    return ledger


def test_page(tmp_path):
    legend, config = {"P": "agent", "X": "nothing"}, {"game": "babyai", "alpha": 1.0}
    path = page.write(tmp_path, "scripted", config, results(), usage(), ["a note"], legend)
    read = Page(path.read_text(encoding="utf-8"))
    text = "".join(read.text)
    assert not read.open and "script" not in read.elements
    for words in ("LAC and planners: scripted on babyai", "1,000", "a note", "Against LAC", "Q along time", "P agent"):
        assert words in text
    order = ("Success", "from the first move", "follow prior or critic?", "Language-model calls", "LAC on open")
    assert sorted(order, key=text.index) == list(order)
    markdown = (tmp_path / "table.md").read_text()
    assert "| LAC | 0.50 [0.19, 0.81] | 1.00 [0.44, 1.00] |" in markdown
    assert markdown.count("± is the half-width of the 95 % interval") == markdown.count("differences are paired") == 1
    assert all((tmp_path / name).stat().st_size > 5000 for name in ("success.png", "cost.png", "q.png"))


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_stays_text(tmp_path, hostile, monkeypatch):
    monkeypatch.setattr(page, "figures", lambda results, run_dir: [])
    record = {"candidates": [hostile, "b"], "log_prior": [-1, -2], "q": [1, 2], "improved": [0.5, 0.5]}
    record["futures"] = [[[[hostile] * 3]], []]
    bad = episode(True, q=(1.0, 2.0)) | {"thinking": [record] * 2, "boards": [hostile] * 3, "goal": hostile}
    bad |= {"steps": [[f"think: {hostile}", "OK", ""], ["b", hostile, hostile], [hostile, hostile, ""]]}
    read = Page(
        page.write(tmp_path, hostile, {"game": hostile}, {"lac": method([bad])}, usage(), [hostile]).read_text(
            encoding="utf-8"
        )
    )
    assert not read.open and not read.elements & {"script", "iframe", "img", "svg", "link"}
    names = {name for name, _ in read.attributes}
    assert not any(name.startswith("on") for name in names) and not names & {"src", "href", "srcdoc"}
    styles = {value for name, value in read.attributes if name == "style"}
    assert all(set(value) <= set("leftwidhmargn:%;-.0123456789") for value in styles)
