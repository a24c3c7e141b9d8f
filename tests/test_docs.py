"""The Python in the README and the guides runs as it stands there, and compiles its update once."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def blocks(page: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("page", ["README.md", pytest.param("docs/own_game.md", marks=pytest.mark.slow)])
def test_the_code_of_a_page_runs(page, capsys):
    names = {"__name__": "page"}
    exec(compile(blocks(page), page, "exec"), names)
    assert float(names["metrics"]["finite"]) == 1 and int(names["state"].iteration) > 1
    assert capsys.readouterr().out
    assert names["update"]._cache_size() == 1


def links(page: pathlib.Path) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)#]+)", page.read_text()) if "://" not in link]


def test_links_of_the_pages_lead_somewhere():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    missing = [f"{page.name}: {link}" for page in pages for link in links(page) if not (page.parent / link).exists()]
    assert not missing and sum(map(len, map(links, pages))) > 20
