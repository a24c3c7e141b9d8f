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
    code = blocks(page).replace("1000", "8").replace("num_groups=5", "num_groups=1")  # fewer episodes
    exec(compile(code, page, "exec"), names)
    assert float(names["metrics"]["finite"]) == 1 and int(names["state"].iteration) > 1
    assert capsys.readouterr().out
    assert names["update"]._cache_size() == 1


def links(page: pathlib.Path) -> list[tuple[str, str]]:
    """(file, or "" for this page; section, or "") of each link within the repository."""
    found = re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text())
    return [(file, section) for file, section in found if "://" not in file]


def sections(page: pathlib.Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_of_the_pages_lead_somewhere():
    pages, broken, followed = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")], [], 0
    for page in pages:
        for file, section in links(page):
            target, followed = page.parent / file if file else page, followed + 1
            if not target.exists() or section and section not in sections(target):
                broken.append(f"{page.name}: {file}#{section}")
    assert not broken and followed > 20
