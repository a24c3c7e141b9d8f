"""README's moving picture: episodes of the demo's model on the same maps before and after training.

    python docs/make_demo.py runs/demo    # after `make demo`; writes docs/demo.svg

The run's results.json holds these episodes, played greedily on maps that training never shows. The picture plays them
one after another, those that are lost after training last. Its colours follow the page.
"""

from __future__ import annotations

import html
import json
import pathlib
import sys
from typing import NamedTuple

PICTURE = pathlib.Path(__file__).with_name("demo.svg")
TILE, LEFT, TOP, GAP = 52, 32, 62, 60  # pixels: a tile, the first board's corner, and between the two boards
STEP_SECONDS, PAUSE_SECONDS = 0.45, 1.5  # one move; how long a map's end stays
MOVES = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}

STYLE = """
text { font-family: ui-sans-serif, system-ui, sans-serif; font-size: 16px; fill: #1f2328; }
.reply { font-family: ui-monospace, monospace; font-size: 13px; }
.title { font-weight: 600; }
.ice { fill: #d6ecfa; } .hole { fill: #274060; } .won { fill: #1a7f37; } .lost { fill: #cf222e; }
.pole { stroke: #57606a; stroke-width: 3; } .flag { fill: #1a7f37; } .player { fill: #e8590c; } .eye { fill: #ffffff; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .ice { fill: #6f9fbf; } .hole { fill: #0b1522; stroke: #38516b; }
  .won { fill: #3fb950; } .lost { fill: #ff7b72; } .pole { stroke: #e6edf3; } .flag { fill: #2ea043; }
}
@media (prefers-reduced-motion: reduce) { * { animation-play-state: paused !important; } }
"""


class Frame(NamedTuple):
    """The player's cell after a move, and the reply that the move is from."""

    row: int
    column: int
    reply: str


class Film(NamedTuple):
    """One episode. rows: its map, as letters. frames: the start first, then one for each move."""

    rows: list[str]
    frames: list[Frame]
    won: bool


def film(episode: dict) -> Film:
    """The moves of an episode as results.json holds it, each checked against the board that the game showed next."""
    rows = episode["turns"][0]["board"].replace(" ", "").split("\n")
    row, column = cell_of(episode["turns"][0]["board"])
    frames = [Frame(row, column, "")]
    boards = [turn["board"] for turn in episode["turns"][1:]] + [episode["final_board"]]
    for turn, board in zip(episode["turns"], boards, strict=True):
        for action in turn["actions"][: turn["steps"]]:
            down, right = MOVES[action]
            row = min(max(row + down, 0), len(rows) - 1)
            column = min(max(column + right, 0), len(rows) - 1)
            frames.append(Frame(row, column, turn["reply"]))
        assert (row, column) == cell_of(board), f"{turn['actions']} do not lead to\n{board}"
    return Film(rows, frames, episode["success"])


def cell_of(board: str) -> tuple[int, int]:
    """(row, column) of the player: P, in a hole X, at the goal *."""
    letters = board.replace(" ", "").split("\n")
    (cell,) = [(r, c) for r, line in enumerate(letters) for c, letter in enumerate(line) if letter in "PX*"]
    return cell


def keyframes(name: str, changes: list[tuple[float, str]], seconds: float) -> str:
    """An animation that jumps to each (time, declaration) and stays there until the next."""
    steps = []
    for index, (start, declaration) in enumerate(changes):
        end = changes[index + 1][0] if index + 1 < len(changes) else seconds
        steps.append(f"{100 * start / seconds:.2f}%, {max(100 * end / seconds - 0.01, 0):.2f}% {{ {declaration} }}")
    return f"@keyframes {name} {{ {' '.join(steps)} }}\n"


def shown(start: float, end: float, seconds: float) -> list[tuple[float, str]]:
    """Visible from `start` to `end` and hidden otherwise."""
    changes = [(0.0, "opacity: 0")] * (start > 0) + [(start, "opacity: 1")]
    return changes + [(end, "opacity: 0")] * (end < seconds)


def board(film: Film, x: int, y: int) -> str:
    """The tiles of a map, and the flag at its goal."""
    tiles = []
    for r, line in enumerate(film.rows):
        for c, letter in enumerate(line):
            kind = "hole" if letter == "O" else "ice"
            corner = f'x="{x + c * TILE + 2}" y="{y + r * TILE + 2}"'
            tiles.append(f'<rect {corner} width="{TILE - 4}" height="{TILE - 4}" rx="8" class="{kind}"/>')
    goal_x, goal_y = x + (len(film.rows) - 1) * TILE + 18, y + (len(film.rows) - 1) * TILE + 12
    tiles.append(f'<path d="M{goal_x} {goal_y}v30" class="pole"/>')
    tiles.append(f'<path d="M{goal_x} {goal_y}l20 8l-20 8z" class="flag"/>')
    return "".join(tiles)


PLAYER = (
    '<circle r="15" class="player"/><circle cx="-5" cy="-4" r="3.5" class="eye"/><circle cx="5" cy="-4" r="3.5" '
    'class="eye"/>'
)


def panel(film: Film, name: str, x: int, start: float, end: float, seconds: float) -> tuple[str, str]:
    """(drawing, animations) of one episode that plays from `start` to `end` of the loop."""
    middle, below = x + 2 * TILE, TOP + 4 * TILE + 28
    times = [start + index * STEP_SECONDS for index in range(len(film.frames))]
    places = [
        f"transform: translate({x + frame.column * TILE + TILE // 2}px, {TOP + frame.row * TILE + TILE // 2}px)"
        for frame in film.frames
    ]
    changes = list(zip(times, places, strict=True))
    animations = keyframes(name, [(0.0, places[0])] * (start > 0) + changes, seconds)
    drawing = [board(film, x, TOP)]
    drawing.append(f'<g style="{places[0]}; animation: {name} {seconds:.2f}s infinite">{PLAYER}</g>')
    texts = [(frame.reply, time, "reply") for frame, time in zip(film.frames[1:], times[1:], strict=True)]
    outcome = ("reaches the goal", "won title") if film.won else ("falls into a hole", "lost title")
    texts.append((outcome[0], times[-1] + STEP_SECONDS / 2, outcome[1]))
    for index, (text, time, kind) in enumerate(texts):
        line, until = below + 24 * (kind != "reply"), end
        if index + 1 < len(texts) and texts[index + 1][2] == "reply":
            until = texts[index + 1][1]  # the next move may be of the same reply, which then stays in place
        animations += keyframes(f"{name}_{index}", shown(time, until, seconds), seconds)
        style = f"opacity: 0; animation: {name}_{index} {seconds:.2f}s infinite"
        place = f'x="{middle}" y="{line}" text-anchor="middle"'
        drawing.append(f'<text {place} class="{kind}" style="{style}">{html.escape(text)}</text>')
    return "".join(drawing), animations


def draw(pairs: list[tuple[Film, Film]], iterations: int) -> str:
    """The picture: for each map (the episode before training, the one after it), side by side."""
    lengths = [STEP_SECONDS * max(len(film.frames) for film in pair) + PAUSE_SECONDS for pair in pairs]
    seconds, start = sum(lengths), 0.0
    right = LEFT + 4 * TILE + GAP
    scenes, animations = [], STYLE
    for number, (pair, length) in enumerate(zip(pairs, lengths, strict=True)):
        drawings = []
        for side, (episode, x) in enumerate(zip(pair, (LEFT, right), strict=True)):
            drawing, moves = panel(episode, f"m{number}{'ab'[side]}", x, start, start + length, seconds)
            drawings.append(drawing)
            animations += moves
        animations += keyframes(f"map{number}", shown(start, start + length, seconds), seconds)
        style = f"opacity: {int(number == 0)}; animation: map{number} {seconds:.2f}s infinite"
        scenes.append(f'<g style="{style}">{"".join(drawings)}</g>')
        start += length
    width, height = right + 4 * TILE + LEFT, TOP + 4 * TILE + 68
    titles = "".join(
        f'<text x="{x + 2 * TILE}" y="40" text-anchor="middle" class="title">{text}</text>'
        for x, text in ((LEFT, "before training"), (right, f"after {iterations} iterations"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="The same maps of FrozenLake, played before and after training">'
        f"<style>{animations}</style>{titles}{''.join(scenes)}</svg>\n"
    )


def main(run_dir: pathlib.Path) -> None:
    episodes = json.loads((run_dir / "results.json").read_text())["transcripts"]
    iterations = json.loads((run_dir / "config.json").read_text())["iterations"]
    pairs = [(film(before), film(after)) for before, after in zip(episodes["before"], episodes["after"])]
    PICTURE.write_text(draw(sorted(pairs, key=lambda pair: not pair[1].won), iterations))
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
