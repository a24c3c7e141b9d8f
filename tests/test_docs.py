"""The pages: their Python runs, their links lead somewhere, their commands parse, and the API page is up to date."""

import ast
import collections
import pathlib
import re
import runpy
import shlex

import pytest
from absl import flags

from nlrl_jax.launch.__main__ import FILES
from tests.launch import scripts

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", pytest.param("docs/own_game.md", marks=pytest.mark.slow)])
def test_the_code_of_a_page_runs(page, capsys):
    # Games that the host plays are a module a section; tests/envs/test_user_game_page.py plays them.
    text = (ROOT / page).read_text().partition("\n## A game that the host plays\n")[0]
    code = "\n".join(body for language, body in BLOCK.findall(text) if language == "python")
    names = {"__name__": "page"}
    exec(compile(code.replace("num_groups=5", "num_groups=1"), page, "exec"), names)  # fewer episodes
    assert float(names["metrics"]["finite"]) == 1 and int(names["state"].iteration) > 1
    assert capsys.readouterr().out
    assert names["update"]._cache_size() == 1


def test_readme_is_a_first_page():
    text = (ROOT / "README.md").read_text()
    prose = re.sub(r"\]\([^)]*\)", "]", BLOCK.sub("", text))  # without code and the addresses of links
    assert len(re.findall(r"[\w'’.+-]*\w", prose)) <= 900
    assert (ROOT / "docs" / "demo.svg").stat().st_size < 300_000


def anchors(page: pathlib.Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_of_the_pages_lead_somewhere():
    broken, followed = [], 0
    for page in PAGES:
        for file, section in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
            if "://" in file:
                continue
            target, followed = page.parent / file if file else page, followed + 1
            if not target.exists() or section and section not in anchors(target):
                broken.append(f"{page.name}: {file}#{section}")
    assert not broken and followed > 20


def test_the_api_page_is_what_the_docstrings_say():
    page = runpy.run_path(str(ROOT / "docs" / "make_api.py"))["page"]()
    assert (ROOT / "docs" / "api.md").read_text() == page, "run `make docs`"
    assert all(name in page for name in ("`make_update(", "`decide(", "`load_model(", "`aaw_sample("))


def test_links_lead_to_the_same_pages_in_the_site():
    site, targets = runpy.run_path(str(ROOT / "docs" / "make_site.py")), set()
    text = "[LAC](docs/lac.md#run), [Snake](envs/snake.py), [games](envs), [web](https://arxiv.org)\n"
    code = "```\n[as it is](envs)\n```\n"
    relinked = (
        "[LAC](lac.md#run), [Snake](code/envs/snake.py.md), [games](code/envs/index.md), [web](https://arxiv.org)\n"
    )
    assert site["relinked"](text + code, ROOT / "README.md", targets) == relinked + code
    assert targets == {ROOT / "docs" / "lac.md", ROOT / "envs" / "snake.py", ROOT / "envs"}


PAPERS = {"MS-GRPO": (3, 2), "NLRL": (8, 16), "LAC": (12, 30), "ULTRA": (5, 2)}  # the last figure, the last table


@pytest.mark.parametrize("paper", PAPERS)
def test_the_reproduction_page_has_every_figure_and_table(paper):
    text = (ROOT / "docs" / "reproduction.md").read_text().split(f"\n## {paper}\n")[1].split("\n## ")[0]
    titles = " ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| "))
    for kind, last in zip(("Figure", "Table"), PAPERS[paper]):
        numbers = set()
        for series in re.findall(rf"{kind}s? (\d[\d, a-dto]*)", titles):
            for first, end in re.findall(r"(\d+)(?: to (\d+))?", series):
                numbers |= set(range(int(first), int(end or first) + 1))
        assert numbers == set(range(1, last + 1)), f"{kind}s {sorted(set(range(1, last + 1)) ^ numbers)}"


COMMAND = re.compile(r"\s*(?:PYTHONPATH=\. |srun )?((?:nlrl-jax|python -m benchmarks\.\w+|pytest)(?: .*)?$)")


def commands(text: str) -> list[list[str]]:
    """The commands of a page, in words: in blocks of code, indented blocks, and between backquotes."""
    text = text.replace("\\\n", " ")
    lines = [line for _, body in BLOCK.findall(text) for line in body.splitlines()]
    lines += re.findall(r"^ {4}\S.*$", text, re.MULTILINE)
    lines += [" ".join(quoted.split()) for quoted in re.findall(r"`([^`]+)`", BLOCK.sub("", text))]
    matches = filter(None, map(COMMAND.match, lines))
    return [shlex.split(match[1].translate(str.maketrans("[]", "  ")), comments=True) for match in matches]


def is_of_an_earlier_commit(script: str, words: list[str], removed: list[set[str]]) -> bool:
    """Whether a command has all the words of an entry of docs/lab/removed.md."""
    parts = {part for word in (script, *words) for part in re.split("[,=]", word)}
    return any(entry <= parts for entry in removed)


def by_script() -> dict[str, list[tuple[str, list[str]]]]:
    """script, benchmarks/NAME, or pytest -> (page, arguments) of its commands on the pages and in the scripts' docs."""
    removed = [set(entry.split()) for entry in re.findall(r"`([^`]+)`", (ROOT / "docs/lab/removed.md").read_text())]
    texts = [(page, page.read_text()) for page in PAGES]
    for path in sorted((ROOT / "launch").glob("[a-z]*.py")):
        texts.append((path, ast.get_docstring(ast.parse(path.read_text())) or ""))
    scripts = collections.defaultdict(list)
    for page, text in texts:
        for words in commands(text):
            if words[0] == "pytest":
                scripts["pytest"].append((page.name, words[1:]))
                continue
            module, *arguments = words[2:] if words[0] == "python" else words[1:] or ["NAME"]
            module = module.replace("benchmarks.", "benchmarks/")
            old = page.parent.name == "lab" and is_of_an_earlier_commit(module, arguments, removed)
            if module != "NAME" and not old:
                scripts[module].append((page.name, arguments))
    return scripts


COMMANDS = by_script()
TESTS = COMMANDS.pop("pytest")
BENCHMARKS = [name for name in COMMANDS if name.startswith("benchmarks/")]


@pytest.mark.parametrize("script", sorted(COMMANDS.keys() - set(BENCHMARKS)))
def test_commands_of_the_pages_parse(script):
    file = FILES.get(script, script)
    assert (ROOT / "launch" / f"{file}.py").exists(), f"{COMMANDS[script][0][0]}: nlrl-jax {script}"
    wrong = []
    with scripts.loaded(file) as module:
        for page, words in COMMANDS[script]:
            if "--help" in words:
                continue
            # A letter in place of a number, as in `--seed S`.
            pairs = zip(words, ["", *words])
            words = ["1" if re.fullmatch("[A-Z]", word) and last.startswith("--") else word for word, last in pairs]
            if script == "ablate":  # options that are not its own go to each run of the study
                words = module.gathered(words)
            flags.FLAGS.unparse_flags()
            try:
                flags.FLAGS([script, *words])
            except flags.Error as error:
                wrong.append(f"{page}: nlrl-jax {script} {' '.join(words)}: {error}")
    assert not wrong, "\n".join(wrong)


def test_tests_that_the_pages_name_exist():
    missing = [word for _, words in TESTS for word in words if word.startswith("tests/") and not (ROOT / word).exists()]
    assert TESTS and not missing


@pytest.mark.parametrize("script", BENCHMARKS)
def test_options_of_benchmarks_exist(script):
    source = (ROOT / f"{script}.py").read_text()
    for page, words in COMMANDS[script]:
        for name in [word[2:].partition("=")[0] for word in words if word.startswith("--")]:
            defined = rf'"(--)?(no_)?{name}"|parser_of\([^)]*\b{name}='
            assert re.search(defined, source), f"{page}: {script} --{name}"
