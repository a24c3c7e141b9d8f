"""Curves: the numbers drawn, and a PNG on disk."""

import logging

import numpy as np
import pytest

from nlrl_jax.run import plots
from nlrl_jax.run.metrics import MetricsWriter


def make_run(path, seed, n=40):
    rng = np.random.default_rng(seed)
    with MetricsWriter(path) as writer:
        for i in range(n):
            sparse = {"eval/success": i / n} if i % 10 == 9 else {}
            writer.write(i, {"return": i / n + 0.1 * rng.normal(), "broken": np.nan, **sparse})
    return path


def is_png(path):
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


@pytest.mark.parametrize("lengths", [(40,), (40, 40, 25)])
def test_one_run_or_several_of_different_length(tmp_path, lengths):
    runs = [make_run(tmp_path / str(seed), seed, n) for seed, n in enumerate(lengths)]
    names = ["return", "eval/success", "broken", "absent"]
    assert is_png(plots.learning_curve(runs, names, tmp_path / "c.png"))


def drawn_axes(monkeypatch, draw, *arguments, **options):
    """The axes of the figure that a function of `plots` would save."""
    figures = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: figures.append(figure))
    draw(*arguments, **options)
    return figures[0].axes


def test_one_axis_for_all_curves(tmp_path, monkeypatch):
    """x is iterations done, 0 before training; a share has its axis from 0 to 1, also where it changes little."""
    names = ["return", "eval/success"]
    (run,), start = [make_run(tmp_path / "a", 0)], {"eval/success": 0.125}
    reward, share = drawn_axes(monkeypatch, plots.learning_curve, [run], names, "", smoothing=0, before=start)
    assert reward.lines[0].get_xdata()[0] == 1 and reward.lines[0].get_xdata()[-1] == 40
    assert share.lines[0].get_xdata().tolist() == [0, 10, 20, 30, 40] and share.lines[0].get_ydata()[0] == 0.125
    assert reward.get_xlim()[0] == share.get_xlim()[0] == 0
    line = lambda top: [plots.Series("x", [0, 1], np.array([[0.25, top]]))]
    panels = {"win rate": line(0.5), "score": line(0.5), "success": line(2.0)}
    win, score, beyond = drawn_axes(monkeypatch, plots.compare, panels, "", "iteration", "")
    for axes, whole in ((share, True), (win, True), (reward, False), (score, False), (beyond, False)):
        assert (axes.get_ylim() == (-0.02, 1.02)) == whole


def test_several_runs_are_their_mean_and_one_is_drawn_as_measured_too(tmp_path, monkeypatch):
    for name, values in (("a", [1.0, 2, 3]), ("b", [3.0, 2])):
        with MetricsWriter(tmp_path / name) as writer:
            for i, x in enumerate(values):
                writer.write(i, {"x": x, "y": x})
    draw = lambda *names: drawn_axes(
        monkeypatch, plots.learning_curve, [tmp_path / name for name in names], ["x", "y"], "", smoothing=0.7
    )
    mean, other = draw("a", "b")
    np.testing.assert_allclose(mean.lines[0].get_ydata(), [2, 2, 2.5])  # running means over two values
    assert len(mean.lines) == 1 and mean.collections and not mean.get_legend()
    assert mean.lines[0].get_color() != other.lines[0].get_color()
    raw, smooth = draw("a")[0].lines
    np.testing.assert_allclose(raw.get_ydata(), [1, 2, 3])
    np.testing.assert_allclose(smooth.get_ydata(), [1, 1.5, 2.5])


def test_matplotlib_reports_no_font_cache():
    assert not logging.getLogger("matplotlib.font_manager").isEnabledFor(logging.WARNING)


def test_running_mean():
    np.testing.assert_allclose(plots.running_mean(np.arange(6.0), 3), [0.5, 1, 2, 3, 4, 4.5])
    np.testing.assert_allclose(plots.running_mean(np.arange(4.0), 1), np.arange(4))
    assert plots.running_mean(np.arange(0.0), 5).size == 0


def test_unknown_metric(tmp_path):
    run = make_run(tmp_path / "a", 0, n=3)
    with pytest.raises(ValueError, match="none of succes is in .*'broken', 'return'"):
        plots.learning_curve([run], ["succes"], tmp_path / "c.png")


def test_compared_runs_are_mean_band_and_best_run(monkeypatch):
    ys = np.array([[0.0, 1.0], [2.0, 5.0]])
    panels = {"a": [plots.Series("x", [0, 10], ys), plots.Series("y", [0, 10], ys[:1])], "b": []}
    axes, empty = drawn_axes(monkeypatch, plots.compare, panels, "", "time", "reward")
    mean, best, alone = axes.lines
    np.testing.assert_allclose(mean.get_ydata(), [1, 3])
    np.testing.assert_allclose(best.get_ydata(), [2, 5])  # the highest at the end
    np.testing.assert_allclose(alone.get_ydata(), [0, 1])
    assert mean.get_color() == best.get_color() != alone.get_color() and not empty.lines


def test_pngs_of_comparisons(tmp_path):
    series = [plots.Series("x", [0, 1], np.array([[0.0, 1.0], [np.nan, 2.0]]))]
    assert is_png(plots.compare({"a": series}, tmp_path / "c.png", "time", "reward"))
    bars = [plots.Bar("one", 0.5, (0.2, 0.1)), plots.Bar("two", -3.0, np.nan)]
    assert is_png(plots.bars({"a": bars, "b": bars, "c": bars[:1]}, tmp_path / "b.png", "reward"))


def test_crowded_bars_have_a_legend_and_shares_an_axis_from_0_to_1(tmp_path, monkeypatch):
    panel = lambda n, top=0.2: [plots.Bar(f"m{i}", top, 0.1) for i in range(n)]
    few, high = drawn_axes(monkeypatch, plots.bars, {"a": panel(3), "b": panel(5, 7.0)}, "", "success")
    assert few.get_ylim() == (0, 1.12) and high.get_ylim()[1] > 7
    assert [label.get_text() for label in few.get_xticklabels()] == ["m0", "m1", "m2"] and not few.figure.legends
    (crowded,) = drawn_axes(monkeypatch, plots.bars, {"a": panel(12)}, "", "success")
    assert not any(label.get_text() for label in crowded.get_xticklabels())
    assert [text.get_text() for text in crowded.figure.legends[0].get_texts()] == [f"m{i}" for i in range(12)]


def test_many_lines_have_a_legend_below(monkeypatch):
    lines = [plots.Series(f"setting {i}, a long name", [0, 1], np.ones((1, 2))) for i in range(7)]
    (few,) = drawn_axes(monkeypatch, plots.compare, {"a": lines[:2]}, "", "time", "reward")
    (many,) = drawn_axes(monkeypatch, plots.compare, {"a": lines}, "", "time", "reward")
    assert few.get_legend() and not few.figure.legends and not many.get_legend()
    many.figure.canvas.draw()
    (legend,) = many.figure.legends
    assert len(legend.get_texts()) == 7 and legend.get_window_extent().width < many.figure.bbox.width


def test_points(tmp_path, monkeypatch):
    panels = {"tokens": [plots.Point("a", 10, 0.5, 0.1), plots.Point("b", 5000, 0.7, 0.1)]}
    panels["moves"] = [plots.Point("b", 5, 0.7, 0.1), plots.Point("a", 9, 0.5, 0.1)]
    assert is_png(plots.points(panels, tmp_path / "p.png", "success"))
    tokens, moves = drawn_axes(monkeypatch, plots.points, panels, "", "success")
    assert (tokens.get_xscale(), moves.get_xscale()) == ("log", "linear")
    assert tokens.get_xlabel() == "tokens" and tokens.get_ylim() == moves.get_ylim() == (-0.02, 1.02)
    panels = {"tokens": [plots.Point("a", 28_142, 0.5, 0.1), plots.Point("b", 410_419, 0.7, 0.1)], "x": panels["moves"]}
    tokens, _ = drawn_axes(monkeypatch, plots.points, panels, "", "success")
    tokens.figure.canvas.draw()
    ticks = [text for which in ("major", "minor") for text in tokens.get_xticklabels(which=which) if text.get_text()]
    low, high = tokens.get_window_extent().intervalx
    boxes = sorted((text.get_window_extent().intervalx for text in ticks), key=lambda box: box[0])
    boxes = [box for box in boxes if low <= sum(box) / 2 <= high]
    assert len(boxes) >= 2 and all(a[1] < b[0] for a, b in zip(boxes, boxes[1:])), boxes
    colors = lambda axes: {drawn.get_label(): drawn.lines[0].get_color() for drawn in axes.containers}
    assert colors(tokens) == colors(moves) and len(set(colors(tokens).values())) == 2


def test_bands_of_intervals(monkeypatch):
    ys = np.array([[0.0, 1.0], [2.0, 5.0]])
    panels = {"a": [plots.Series("x", [0, 1], ys)]}
    (axes,) = drawn_axes(monkeypatch, plots.compare, panels, "", "time", "Q", errors=True)
    assert len(axes.lines) == 1  # no run is dashed
    band = axes.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(band[:, 1].max(), 3 + 12.7062 * ys[:, 1].std(ddof=1) / 2**0.5, rtol=1e-5)
