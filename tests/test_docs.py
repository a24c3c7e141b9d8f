"""The Python in the README and the guides runs as it stands there."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def blocks(page: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL))


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/own_game.md"])
def test_the_code_of_a_page_runs(page, capsys):
    names = {"__name__": "page"}
    exec(compile(blocks(page), page, "exec"), names)
    metrics = names["metrics"]
    assert float(metrics["finite"]) == 1 and capsys.readouterr().out
