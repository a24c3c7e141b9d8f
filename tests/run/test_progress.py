"""Progress is a live bar in a terminal and a few lines elsewhere."""

import io

from nlrl_jax.run.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def loop(file, start=0, total=100, **options):
    with Progress(total, start, ("return", "eval/success", "absent"), file=file, **options) as progress:
        for i in range(start, total):
            progress.update(i, {"return": i / 100, "loss": 1.0} | ({"eval/success": 0.5} if i == 50 else {}))


def test_lines_without_a_terminal():
    file = io.StringIO()
    loop(file)
    first, last = file.getvalue().splitlines()
    assert first.startswith("[1/100] return 0  (") and "left" in first
    assert last.startswith("[100/100] return 0.99  eval/success 0.5  (") and last.endswith("0:00 left)")
    assert "\x1b" not in file.getvalue() and "loss" not in file.getvalue()


def test_every_line_when_asked_and_resumed():
    file = io.StringIO()
    loop(file, start=97, every_seconds=0)
    assert [line.split("]")[0] for line in file.getvalue().splitlines()] == ["[98/100", "[99/100", "[100/100"]


def test_nothing_left_to_do():
    file = io.StringIO()
    loop(file, start=100)
    assert file.getvalue() == ""


def test_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    file = Terminal()
    loop(file)
    assert "100/100" in file.getvalue() and "return 0.99" in file.getvalue()
