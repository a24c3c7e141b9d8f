"""Gymnax is imported without what it draws with."""

import subprocess
import sys

import pytest

from nlrl_jax.gymnax_base import deferred

DRAWN = "import pens\nimport pens.ink as ink\nfrom pens import paper\n"


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A package `pens` and a module `drawn` that imports it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pens").mkdir()
    for name, line in (("__init__", "width = 3"), ("ink", "colour = 'blue'"), ("paper", "size = 'A4'")):
        (tmp_path / "pens" / f"{name}.py").write_text(line)
    (tmp_path / "drawn.py").write_text(DRAWN)
    yield
    for name in ("drawn", "pens", "pens.ink", "pens.paper"):
        sys.modules.pop(name, None)


def test_a_deferred_library_is_imported_when_it_is_used(library):
    with deferred("pens"):
        import drawn
    assert "pens" not in sys.modules
    assert (drawn.ink.colour, drawn.paper.size, drawn.pens.width) == ("blue", "A4", 3)
    import pens.ink

    assert pens.ink is sys.modules["pens.ink"] and pens.ink.colour == "blue"
    with pytest.raises(AttributeError):
        drawn.ink.odour  # noqa: B018


def test_a_library_that_is_there_already_stays(library):
    import pens

    with deferred("pens"):
        import drawn
    assert drawn.pens is pens and drawn.ink is sys.modules["pens.ink"]


def test_a_game_imports_nothing_to_draw_with():
    code = "import sys, nlrl_jax.envs.snake; print(*{'matplotlib', 'seaborn', 'pandas'} & set(sys.modules))"
    assert not subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
