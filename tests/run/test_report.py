"""report.html: one file, no network, and nothing a model wrote is anything but text."""

import html.parser
import re

import pytest

from nlrl_jax.run.metrics import MetricsWriter
from nlrl_jax.run.report import cell_colors, distinct, draw_board, mark_reply, telling, write_report

BOARD = "P _ O\n_ _ _\nO _ G"
HOSTILE = [
    "<script>alert(1)</script>",
    "</pre></details></div></main></html><img src=x onerror=alert(1)>",
    "\" onmouseover=\"alert(1)\" ' onfocus='alert(1)'",
    "<action>Up</action><iframe srcdoc='<script>alert(1)</script>'>",
    "nul \x00 escape \x1b[2J cut \udc80 bytes \ufffd\xff turned \u202etxt",
    "{{ config }} {% include '/etc/passwd' %} ${x} &lt;b&gt; <!-- <b> ]]>",
    "x" * 5000,
    "<" * 200 + "<b" + ">" * 200,
    "javascript:alert(1) data:text/html,<script>",
]


def episode(reply="<action>Up</action>", board=BOARD, success=True, **turn):
    record = {"board": board, "prompt": "rules\n" + board, "reply": reply, "actions": ["Up", "Left"], "steps": 1}
    record |= {"invalid": 0, "format_penalty": 0.0, "reward": 0.0, "cut": False} | turn
    return {"success": success, "terminated": True, "env_return": 1.0, "final_board": board, "turns": [record]}


def write(tmp_path, before, after, summary=None, curves=(), **options):
    summary = {"success": (0.37, 0.79)} if summary is None else summary
    path = write_report(
        tmp_path, "title", "question?", {"game": "frozen_lake", "rate": 1e-4}, summary, curves, before, after, **options
    )
    return path.read_text(encoding="utf-8")


class Page(html.parser.HTMLParser):
    """Elements, attributes and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.attributes, self.text, self.open = set(), [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.add(tag)
        self.attributes += attributes
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        self.text.append(data)


def plain_page(tmp_path):
    return Page(write(tmp_path, [episode()], [episode()]))


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_stays_text(tmp_path, hostile):
    before = [episode(hostile, prompt=hostile, actions=[hostile]), episode(board=hostile)]
    page_text = write(tmp_path, before, [episode(hostile)], notes=hostile, summary={hostile: (hostile, 1.0)})
    page = Page(page_text)
    assert not page.open  # every element is closed: the text closed none of ours
    allowed = plain_page(tmp_path).elements | {"p", "b"}
    assert page.elements <= allowed and not page.elements & {"script", "iframe", "img", "svg", "link", "object"}
    names = {name for name, _ in page.attributes}
    assert not any(name.startswith("on") for name in names) and not names & {"src", "href", "srcdoc", "style"}
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", page_text)
    if hostile.isprintable():
        assert hostile in "".join(page.text)


def test_nothing_is_loaded_from_elsewhere(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        for i in range(4):
            writer.write(i, {"return": i})
    page_text = write(tmp_path, [episode()], [episode()], curves=["return"])
    page = Page(page_text)
    sources = [value for name, value in page.attributes if name in ("src", "href", "srcset", "data")]
    assert len(sources) == 1 and sources[0].startswith("data:image/png;base64,")
    assert not re.search(r"https?:|url\(|@import", page_text)
    assert "default-src 'none'" in page_text


def test_before_and_after(tmp_path):
    flawed = episode("Up", success=False, invalid=2, format_penalty=-1.5, cut=True)
    page_text = write(tmp_path, [flawed, episode()], [episode(reward=1.0)])
    text = "".join(Page(page_text).text)
    assert "before: failure, return 1" in text and "after: success, return 1" in text
    for words in ("2 invalid actions", "format penalty -1.5", "reply cut", "reward 1", "+0.42", "0.0001", "question?"):
        assert words in text
    assert 'unused" title="the episode was over">Left' in page_text
    assert page_text.count("Episode ") == 2


@pytest.mark.parametrize(
    "summary", [{"return": 0.5}, [{"agent": "a", "snake": 1.0}, {"agent": "b", "lake": 2.0}], {"x": (1, 2), "y": 3.0}]
)
def test_tables(tmp_path, summary):
    assert "<table>" in write(tmp_path, [], [], summary=summary)
    assert "<table>" not in write(tmp_path, [], [], summary={})


def test_rows_of_zeros_and_repeats_are_folded(tmp_path):
    summary = {"env_return": (0.25, 0.5), "invalid": (0, 0.0), "turns": (2.0, 2.0), "success": (0.25, 0.5)}
    text = "".join(Page(write(tmp_path, [], [], summary=summary)).text)
    assert text.index("success") < text.index("turns") < text.index("always 0: invalid")
    assert "equal to success: env_return" in text and text.count("env_return") == 1
    assert distinct({"a": ["0 → 0", ""], "b": ["10 → 0", ""], "c": ["0 ± 0"]}) == (["b"], ["always 0: a, c"])


def test_headline_and_legend(tmp_path):
    legend = {"P": "player", "X": "player in a hole"}
    page = write(tmp_path, [episode()], [], headline="success 0.224 -> 0.820", legend=legend)
    text = "".join(Page(page).text)
    assert text.index("success 0.224 → 0.820") < text.index("question?") < text.index("P player")
    assert "player in a hole" not in text  # no X on any board


def test_the_most_telling_episode_is_open(tmp_path):
    lost, won = episode(success=False) | {"env_return": 0.0}, episode()
    rich = [episode(success=True) | {"env_return": gain} for gain in (0.0, 9.0)]
    pairs = lambda before, after: [([b], [a]) for b, a in zip(before, after)]
    assert telling(pairs([lost, rich[0], lost, lost], [lost, rich[1], won, won])) == 2
    assert telling(pairs([lost, rich[0]], [lost, rich[1]])) == 1
    assert telling([([lost], []), ([], [won])]) == telling([]) == 0
    page = write(tmp_path, [won, lost], [won, won])
    assert page.count('episode" open') == 1 and page.index('episode" open') < page.index("Episode 2")
    assert page.index('episode" open') > page.index("Episode 1")


def test_films_are_inlined(tmp_path):
    (tmp_path / "before.gif").write_bytes(b"GIF89a")
    page = write(tmp_path, [], [], curves=[tmp_path / "before.gif"])
    assert 'src="data:image/gif;base64,R0lGODlh"' in page


def test_missing_png(tmp_path):
    with pytest.raises(FileNotFoundError):
        write(tmp_path, [], [], curves=[tmp_path / "none.png"])


def test_mark_reply():
    marked = mark_reply("<think>a < b</think><action>Up</action>")
    assert marked == (
        '<span class="tag t0">&lt;think&gt;</span>a &lt; b<span class="tag t0">&lt;/think&gt;</span>'
        '<span class="tag action">&lt;action&gt;</span><b>Up</b><span class="tag action">&lt;/action&gt;</span>'
    )


def test_boards():
    colors = cell_colors([BOARD])
    assert set(colors) == {"P", "O", "G"} and colors == cell_colors([BOARD, BOARD[::-1]])
    drawn = draw_board(BOARD, colors)
    assert drawn.count("<div>") == 3 and drawn.count("<span") == 9
    assert draw_board("xo.\n...\n..x", {}).count("<span") == 9  # without blanks between the cells
    assert draw_board("You see a door.\nIt is shut.", {}).startswith("<pre")
    assert draw_board("", {}).startswith("<pre")
