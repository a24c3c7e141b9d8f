"""report.html: one file, no network, and nothing a model wrote is anything but text."""

import html.parser
import re

import pytest

from nlrl_jax.backends.usage import Usage
from nlrl_jax.run import flags as config_flags
from nlrl_jax.run import report
from nlrl_jax.run.markup import cell_colors, draw_board, mark_reply
from nlrl_jax.run.report import EpisodePairs, Exchanges, Picture, Table

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


def write(tmp_path, *blocks, **options):
    path = report.write_report(tmp_path, "title", "question?", {"game": "frozen_lake", "rate": 1e-4}, blocks, **options)
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


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_stays_text(tmp_path, hostile):
    before = [episode(hostile, prompt=hostile, actions=[hostile]), episode(board=hostile)]
    exchange = {"title": hostile, "board": hostile, "parts": [(hostile, hostile)]}
    blocks = hostile, Table(hostile, [{hostile: hostile}], hostile), Exchanges([exchange])
    page_text = write(tmp_path, *blocks, EpisodePairs(before, [episode(hostile)]), headline=hostile)
    page = Page(page_text)
    assert not page.open  # every element is closed: the text closed none of ours
    assert not page.elements & {"script", "iframe", "img", "svg", "link", "object"}
    names = {name for name, _ in page.attributes}
    assert not any(name.startswith("on") for name in names) and not names & {"src", "href", "srcdoc", "style"}
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", page_text)
    if hostile.isprintable():
        assert hostile in "".join(page.text)


def test_pictures_are_inlined_and_nothing_is_loaded_from_elsewhere(tmp_path):
    for name in ("curve.png", "film.gif"):
        (tmp_path / name).write_bytes(b"GIF89a")
    page_text = write(tmp_path, *(Picture(tmp_path / name, f"of {name}") for name in ("curve.png", "film.gif")))
    page = Page(page_text)
    sources = [value for name, value in page.attributes if name in ("src", "href", "srcset", "data")]
    assert sources == ["data:image/png;base64,R0lGODlh", "data:image/gif;base64,R0lGODlh"]
    assert not re.search(r"https?:|url\(|@import", page_text)
    assert "default-src 'none'" in page_text and "of film.gif" in page_text
    with pytest.raises(FileNotFoundError):
        write(tmp_path, Picture(tmp_path / "none.png", ""))


def test_before_and_after(tmp_path):
    flawed = episode("Up", success=False, invalid=2, format_penalty=-1.5, cut=True)
    shown = EpisodePairs([flawed, episode()], [episode(reward=1.0)])
    page_text = write(tmp_path, report.changes({"success": 0.37}, {"success": 0.79}), shown)
    text = "".join(Page(page_text).text)
    assert "before: failure, return 1" in text and "after: success, return 1" in text
    for words in ("2 invalid actions", "format penalty -1.5", "reply cut", "reward 1", "+0.42", "0.0001", "question?"):
        assert words in text
    assert 'unused" title="the episode was over">Left' in page_text
    assert page_text.count("Episode ") == 2 and page_text.index('episode" open') < page_text.index("Episode 1")
    assert page_text.count('episode" open') == 1


def test_tables_with_missing_cells_and_none(tmp_path):
    rows = [{"agent": "a", "snake": 1.23456, "interval": "-0.5 ± 1"}, {"agent": "b", "lake": "–"}]
    page = write(tmp_path, Table("Title", rows, "a note"), Table("Without rows", []))
    assert page.count("<table>") == 1 and "Without rows" not in page and "a note" in page and "1.235" in page
    numbers = [line.partition(">")[2] for line in re.findall(r"<th class=number([^<]*)", page)]
    assert numbers == ["snake", "interval", "lake"]


def test_rows_of_zeros_and_repeats_are_named_in_the_note():
    before = {"env_return": 0.25, "invalid": 0, "env_return_std": 2.0, "success": 0.25}
    table = report.changes(before, {"env_return": 0.5, "invalid": 0.0, "env_return_std": 2.0, "success": 0.5})
    assert [row["metric"] for row in table.rows] == ["success", "standard deviation of the return"]  # in words
    assert [row["change"] for row in table.rows] == ["+0.25", ""]
    assert table.note == "Not shown: always 0: invalid; equal to success: return of the game."
    assert report.distinct({"a": ["0 → 0"], "b": ["10 → 0"], "c": ["0 ± 0"]}) == (["b"], ["always 0: a, c"])


def test_tokens_by_role_over_all_sections():
    usage = Usage()
    for usage.section in ("first/", "second/"):
        usage.add("value", calls=600, prompt_tokens=2000, tokens=10, seconds=0.5)
    usage.add("policy", calls=1, retries=2)
    rows = {row["role"]: row for row in report.tokens(usage).rows}
    assert rows["value"]["calls"] == "1,200" and rows["value"]["tokens read"] == "4,000" and "cut" in rows["value"]
    assert rows["policy"]["retries"] == 2 and "refused" not in rows["policy"]
    assert report.tokens(Usage()).rows == []


def test_headline_and_legend(tmp_path):
    legend = {"P": "player", "O": "hole", "G": "hole", "X": "player in a hole"}
    page = write(tmp_path, EpisodePairs([episode()], []), headline="success 0.224 -> 0.820", legend=legend)
    text = "".join(Page(page).text)
    assert text.index("success 0.224 → 0.820") < text.index("question?") < text.index("P player")
    assert "player in a hole" not in text  # no X on any board
    assert "OG hole" in text  # two characters of one name


def test_the_foot_says_how_the_page_was_made(tmp_path, monkeypatch):
    monkeypatch.setattr(report.sys, "argv", ["/somewhere/launch/train_ms_grpo.py", "--model", "my model"])
    monkeypatch.setattr(report, "_STARTED", report.time.monotonic() - 130)
    text = "".join(Page(write(tmp_path)).text)
    assert "nlrl-jax train_ms_grpo --model 'my model'" in text and "2 min 10 s" in text
    assert re.search(r"date: \d{4}-\d\d-\d\d \d\d:\d\d\s+command", text) and "version: nlrl_jax" in text


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
    assert draw_board("You see a door.\nIt is shut.", {}).startswith('<pre class="text-board">')
    assert draw_board("You see a door.", {}).startswith('<pre class="text-board prose">')
    assert draw_board("", {}).startswith("<pre")
    assert draw_board("##\n#_", {}).count('class="wall"') == 3


def test_things_have_the_colours_they_are_named_after():
    legend = {"<": "agent", ">": "agent", "K": "yellow key", "B": "yellow ball", "d": "locked red door", "?": "idol"}
    colors = cell_colors(["..<>\nKBd?\n...."], legend)
    assert colors["K"] == colors["B"] != colors["d"] and colors["<"] == colors[">"]
    assert len(set(colors.values())) == 4  # nobody else has a colour of these


def test_the_way_through_a_game_of_text_is_not_repeated_above_it(tmp_path):
    page = lambda *boards: write(tmp_path, EpisodePairs([{**episode(board=boards[0]), "final_board": boards[1]}], []))
    assert 'class="path"' not in page("A room.", "A hall.") and 'class="path"' in page(BOARD, BOARD[::-1])


def test_the_pair_shown_open_is_one_that_changed(tmp_path):
    lost, won = episode(success=False), episode(success=True)
    for after, number in (([lost, won, won], 2), ([lost, {**lost, "env_return": 2.0}], 2), ([lost], 1)):
        text = write(tmp_path, EpisodePairs([lost] * len(after), after))
        assert re.findall(r"episode\" open>\s*<summary>(Episode \d)", text) == [f"Episode {number}"]


def test_options_that_the_run_did_not_use_are_not_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(config_flags, "_IDLE", set())
    config_flags.leave_out("in this test", "beta")
    config = {"game": "snake", "beta": 0.5, "revision": "", "top_k": 0}
    shown = "".join(Page(report.write_report(tmp_path, "t", "q", config, []).read_text()).text)
    assert "game" in shown and "top_k" in shown
    assert "beta" not in shown and "revision" not in shown
