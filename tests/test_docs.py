"""The pages: their Python runs, their links lead somewhere, their commands parse, and the API page is up to date."""

import ast
import collections
import pathlib
import re
import runpy
import shlex

import pytest
from absl import flags

from tests.launch import scripts

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: str) -> str:
    """Its code; that of host games, a module in each section, is tests/envs/test_user_game_page.py's."""
    text = (ROOT / page).read_text().partition("\n## A game that the host plays\n")[0]
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


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
    broken, followed = [], 0
    for page in PAGES:
        for file, section in links(page):
            target, followed = page.parent / file if file else page, followed + 1
            if not target.exists() or section and section not in sections(target):
                broken.append(f"{page.name}: {file}#{section}")
    assert not broken and followed > 20


def test_the_api_page_is_what_the_docstrings_say():
    made = runpy.run_path(str(ROOT / "docs" / "make_api.py"))["page"]()
    assert (ROOT / "docs" / "api.md").read_text() == made, "run `make docs`"
    assert all(name in made for name in ("`make_update(", "`decide(", "`load_model(", "`aaw_sample("))


PAPERS = {"MS-GRPO": (3, 2), "NLRL": (8, 16), "LAC": (12, 30), "ULTRA": (5, 2)}  # the last figure, the last table


@pytest.mark.parametrize("paper", PAPERS)
def test_the_reproduction_page_has_every_figure_and_table(paper):
    text = (ROOT / "docs" / "reproduction.md").read_text().split(f"\n## {paper}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")][1:]
    for kind, last in zip(("Figure", "Table"), PAPERS[paper]):
        named = set()
        for numbers in re.findall(rf"{kind}s? (\d[\d, a-dto]*)", " ".join(cells)):
            for first, end in re.findall(r"(\d+)(?: to (\d+))?", numbers):
                named |= set(range(int(first), int(end or first) + 1))
        assert named == set(range(1, last + 1)), f"{kind}s {sorted(set(range(1, last + 1)) ^ named)}"


def commands(text: str) -> list[list[str]]:
    """The commands of a page, in words: in blocks of code, indented ones too, and between backquotes."""
    text = text.replace("\\\n", " ")
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    blocks += re.findall(r"^ {4}\S.*$", text, re.MULTILINE)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += [" ".join(one.split()) for one in re.findall(r"`([^`]+)`", rest)]
    lines = [re.sub(r"^\s*(PYTHONPATH=\. )?(srun )?", "", line) for line in lines]
    known = re.compile(r"(nlrl-jax|python -m (launch|benchmarks)\.\w+|pytest)( |$)|python benchmarks/")
    wanted = [line for line in lines if known.match(line)]
    return [shlex.split(line.translate(str.maketrans("[]", "  ")), comments=True) for line in wanted]


def past(script: str, words: list[str]) -> bool:
    """Whether a command of the lab notebook is of an earlier commit: docs/CHANGELOG.md lists what was removed."""
    removed = (ROOT / "docs" / "CHANGELOG.md").read_text().partition("\n## Removed\n")[2]
    said = {part for word in (script, *words) for part in re.split("[,=]", word)}
    return any(set(one.split()) <= said for one in re.findall(r"`([^`]+)`", removed))


def by_script() -> dict[str, list[tuple[str, list[str]]]]:
    """script, or the path of a benchmark -> (page, arguments) of its commands."""
    found = collections.defaultdict(list)
    docstring = lambda path: ast.get_docstring(ast.parse(path.read_text())) or ""
    texts = [(page, page.read_text()) for page in PAGES]
    texts += [(path, docstring(path)) for path in sorted((ROOT / "launch").glob("[a-z]*.py"))]
    for page, text in texts:
        for words in commands(text):
            if words == ["nlrl-jax"] or any(re.fullmatch(r"(launch\.)?NAME", word) for word in words[:3]):
                continue
            if words[0] == "pytest":
                missing = [word for word in words if word.startswith("tests/") and not (ROOT / word).exists()]
                assert not missing, f"{page.name}: {missing}"
                continue
            module, *rest = words[2:] if words[:2] == ["python", "-m"] else words[1:]
            module = module.removeprefix("nlrl_jax.launch.").replace("benchmarks.", "benchmarks/").removesuffix(".py")
            if not (page.parent.name == "lab" and past(module, rest)):
                found[module].append((page.name, rest))
    return found


COMMANDS = by_script()


def value(words: list[str], n: int) -> str:
    """A word, or 1 for the placeholder of a number, as in `--seed S`."""
    placeholder = re.fullmatch(r"[A-Z]", words[n]) and n and words[n - 1].startswith("--")
    return "1" if placeholder else words[n]


@pytest.mark.parametrize("script", [name for name in COMMANDS if not name.startswith("benchmarks/")])
def test_commands_of_the_pages_parse(script):
    assert (ROOT / "launch" / f"{script}.py").exists(), f"{COMMANDS[script][0][0]}: nlrl-jax {script}"
    wrong = []
    with scripts.loaded(script):
        for page, words in COMMANDS[script]:
            if "--help" in words:
                continue
            flags.FLAGS.unparse_flags()
            try:
                flags.FLAGS([script, *(value(words, n) for n in range(len(words)))])
            except flags.Error as error:
                wrong.append(f"{page}: nlrl-jax {script} {' '.join(words)}: {error}")
    assert not wrong, "\n".join(wrong)


def test_options_of_benchmarks_exist():
    wrong = []
    for script, found in COMMANDS.items():
        if script.startswith("benchmarks/"):
            path = ROOT / f"{script}.py"
            source = path.read_text() if path.exists() else ""
            for page, words in found:
                names = [word[2:].partition("=")[0] for word in words if word.startswith("--")]
                defined = r'"(--)?(no_)?{0}"|parser_of\([^)]*\b{0}='
                missing = [name for name in names if not re.search(defined.format(name), source)]
                if not source or missing:
                    wrong.append(f"{page}: {script} {missing}")
    assert not wrong, "\n".join(wrong)
