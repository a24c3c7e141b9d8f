"""The page of language TD: of a run that learns nothing, each evaluation once and no curve."""

import pytest

from nlrl_jax.backends.usage import Usage
from nlrl_jax.roles.board_games import View
from nlrl_jax.run.reports import language_td as report

JUDGED = {"accuracy": 0.5, "answered": 1.0, "positions": 10.0}


@pytest.mark.parametrize("iterations", [0, 1])
def test_a_run_of_no_iterations_shows_evaluations_once(tmp_path, iterations):
    (tmp_path / "metrics.jsonl").write_text(
        '{"iteration": 0, "eval/accuracy": 0.7, "eval/answered": 1.0}\n' * iterations
    )
    stored = {"iterations": iterations, "before": JUDGED, "after": {**JUDGED, "accuracy": 0.7}, "beside": {}}
    view = View("board", "white", ("a1a2",))
    shown = report.judged([(view, 1.0, "old", "new")], ("white", "black"), str, learning=iterations > 0)
    page = report.write(tmp_path, {"model": "nano_board"}, stored, shown, Usage(), (0.4,)).read_text()
    learned = bool(iterations)
    assert ("0.500 → 0.700" in page) == learned and (tmp_path / "curve.png").exists() == learned
    rows = (tmp_path / "measurements.csv").read_text().splitlines()
    assert ("value model after,all,accuracy at 0.4,0.7" in rows) == learned
    assert ("value model after" in page) == ("evaluation after" in page) == learned
