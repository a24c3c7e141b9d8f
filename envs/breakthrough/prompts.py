"""The prompts of language TD on 5 x 5 breakthrough (NLRL, appendix C.2), and the reader of its evaluations.

The wording is ours; the four concepts of an evaluation and the marks <white> and <black> are the paper's, which has no
examples here. Style "compact", for very small models, is an addition: the side to move, the pawns, and the last two
concepts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nlrl_jax.envs.breakthrough.notation import BreakthroughText
from nlrl_jax.roles.board_games import Evaluated, Line, TDRoles, View
from nlrl_jax.types import Chat

STYLES = ("paper", "compact")
NAMES = {"w": "White", "b": "Black"}

_RULES = f"{BreakthroughText(rows=5, columns=5, pawn_rows=2).rules()} Empty squares are drawn as dots."
_CONCEPTS = """\
in at most 150 words, under four headings:
1. *Tactical Considerations*: immediate threats, tactical opportunities and weaknesses.
2. *Positional Evaluation*: pawn structure, active pawns, key squares, safety of each side's home row.
3. *Suggested Moves*: one or two good moves for the side to move, and why.
4. *Advantage*: the side that is ahead by the sections above.
Do not list every pawn. The last line of your answer is either "*Advantage*: <white>" or "*Advantage*: <black>"."""
_VALUE = f"{_RULES}\n\nYou annotate games of breakthrough. You are given a position and evaluate it, {_CONCEPTS}"
_AGGREGATE = f"""{_RULES}

You annotate games of breakthrough by looking ahead. You are given a position and several variations played from it, \
each with an evaluation of the position it leads to. Compare them and conclude what they tell us about the given \
position, {_CONCEPTS}"""
_MARK = re.compile("<(white|black)>")


def roles(style: str = "paper") -> TDRoles:
    """Returns the prompts in one style.

    Raises:
      ValueError: an unknown style.
    """
    if style not in STYLES:
        raise ValueError(f"style is {style!r}; choose one of {', '.join(STYLES)}")
    return TDRoles(value if style == "paper" else _compact_value, aggregate, read_advantage)


def value(view: View) -> Chat:
    return Chat.of(f"The position:\n{described(view)}", _VALUE, view=view)


def aggregate(view: View, variations: Sequence[Evaluated]) -> Chat:
    parts = "\n\n".join(f"*Variation {n}:*\n{_variation(line, text)}" for n, (line, text) in enumerate(variations, 1))
    user = f"The position:\n{described(view)}\n\n{parts}\n\nEvaluate the given position."
    return Chat.of(user, _AGGREGATE, view=view, variations=tuple(variations))


def read_advantage(text: str) -> str | None:
    """Reads the side marked after the last "Advantage" that a mark follows; None where none or both are."""
    marked = [set(_MARK.findall(piece)) for piece in text.lower().split("advantage")[1:]]
    sides = next((sides for sides in reversed(marked) if sides), set())
    return sides.pop() if len(sides) == 1 else None


def described(view: View) -> str:
    """Describes a position: the board, whose turn it is, and where the pawns are."""
    lists = [f"{NAMES[piece]} pawns: {', '.join(squares(view.board, piece)) or 'none'}." for piece in "wb"]
    return "\n".join([view.board, f"It is {view.player}'s turn.", *lists])


def squares(board: str, piece: str) -> list[str]:
    """Lists the squares with a piece, row by row from the top: ["a5", "b5"]."""
    *rows, letters = board.splitlines()
    letters = letters.strip()
    names = []
    for row in rows:
        label = row[: len(row) - len(letters)]
        names += [letters[i] + label.strip() for i, cell in enumerate(row[len(label) :]) if cell == piece]
    return names


def _variation(line: Line, evaluation: str) -> str:
    moves = "\n".join(f"{step.before.player} moves {_move(step.action)}." for step in line.steps)
    words = ",".join(step.action for step in line.steps)
    end = line.steps[-1].after
    if line.over:
        return f"Moves: {words}\n{moves}\nThis ends the game:\n{end.board}\n{line.winner} has won."
    return f"Moves: {words}\n{moves}\nThis leads to:\n{described(end)}\nEvaluation of that position:\n{evaluation}"


def _move(word: str) -> str:
    captures = " and captures" if word.endswith("*") else ""
    start, end = re.fullmatch(r"([a-z]\d+)([a-z]\d+)\*?", word).groups()
    return f"from {start} to {end}{captures}"


def _compact_value(view: View) -> Chat:
    """Asks for a value with the side to move and every pawn, a word each: "a5b" is a black pawn on a5."""
    pawns = [square + piece for piece in "bw" for square in squares(view.board, piece)]
    return Chat.of(" ".join([f"{view.player}:", *pawns]), view=view)
