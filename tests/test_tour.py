"""docs/tour.ipynb runs from top to bottom, and its cells print what they announce."""

import json
import pathlib
import runpy

import pytest

DOCS = pathlib.Path(__file__).parents[1] / "docs"


@pytest.mark.slow
def test_the_tour_runs():
    tour = runpy.run_path(str(DOCS / "run_tour.py"))
    notebook = json.loads((DOCS / "tour.ipynb").read_text())
    text = "\n".join(tour["printed"](notebook))
    assert "solves" in text and "final_evaluation" in text and "LAC takes" in text


def test_the_tour_is_small_and_was_run():
    notebook = json.loads((DOCS / "tour.ipynb").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert notebook["nbformat"] == 4 and len(code) >= 6
    assert sum(bool(cell["outputs"]) for cell in code) >= 5
    assert (DOCS / "tour.ipynb").stat().st_size < 30_000
