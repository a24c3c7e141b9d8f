"""What the roles of the natural-language actor-critic are told about tic-tac-toe (NLRL, appendix C.3).

The wording is ours; roles, fields and JSON formats are the paper's. `final_evaluation` is a number from -1 (X wins) to
1 (O wins). Style "compact", for very small models, is an addition: the board (for a value the one
that the move leads to) and a short thought, in the same JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from envs.tic_tac_toe.rules import ACTIONS, MAX_MOVES, PLAYERS, board_template
from nlrl_jax.roles.board_games import ActorCriticRoles, Evaluated, Line, Move, View
from nlrl_jax.roles.json_reply import read_json, read_number
from nlrl_jax.text.template import Choice, Literal, Repeat, Template
from nlrl_jax.types import Chat

STYLES = ("paper", "compact")

_RULES = """\
Tic-tac-toe is played by two, O and X, on a board of 3 by 3 squares. O begins, and they take turns to claim a free \
square. Three own marks in a row, in a column or on a diagonal win. A full board without such a line is a draw. In the \
drawing a free square shows its number, 1 to 9.
"""
_POLICY = f"""{_RULES}\
You are a strong player. Find the best move for the side whose turn it is and answer with one JSON object of two \
fields: "thought", your reasoning step by step, and "best_move", the number of a free square."""
_EVALUATION = """\
Answer with one JSON object of two fields. "thought" is an object with "Reflection" (what happened after the move), \
"Win probability" (of O and of X), "Threat" (lines that are about to be completed) and "Potential strategies". \
"final_evaluation" is a number: 1 if O is winning, -1 if X is winning, 0 for a draw, or something between."""
_VALUE = f"""{_RULES}\
You judge moves. You are shown a board and a move, and say how good the position is after it.
{_EVALUATION}"""
_MONTE_CARLO = f"""{_RULES}\
You judge moves by what came of them. You are shown a board, a move, and complete games that went on from there. Sum \
up these games only; do not add knowledge of your own about the game.
{_EVALUATION}"""
_TEMPORAL_DIFFERENCE = f"""{_RULES}\
You judge moves by where they lead. You are shown a board, a move, and what happened until the same side was to move \
again, each with somebody's evaluation of the position reached. Combine these into an evaluation of the first move, \
and rely on nothing else.
{_EVALUATION}"""
_IMPROVE = f"""{_RULES}\
You choose a move by comparing evaluations. Each possible move comes with one: a JSON object whose "final_evaluation" \
is 1 where O is winning, -1 where X is winning and 0 for a draw. Do not use knowledge of your own about the game. \
Answer with one JSON object of two fields: "thought", your comparison step by step, and "best_move", the number of the \
move to play, and nothing else."""


def roles(style: str = "paper") -> ActorCriticRoles:
    """The prompts in one style.

    Raises:
      ValueError: an unknown style.
    """
    _check(style)
    paper = style == "paper"
    return ActorCriticRoles(
        policy=policy if paper else _compact_policy,
        value=value if paper else _compact_value,
        monte_carlo=monte_carlo,
        temporal_difference=temporal_difference,
        improve=improve,
        read_move=read_move,
        read_value=read_value,
        clean=clean,
    )


def policy_template(style: str = "paper") -> tuple[Template, str]:
    """What `roles(style).policy` says as data: (the user's message, reading `envs.tic_tac_toe.fields`; the system's).

    For a policy that plays under `jax.jit`. Errors: see `roles`.
    """
    _check(style)
    player = Choice("player", PLAYERS)
    if style == "compact":
        cells = [Choice("cells", (n, *(n + mark for mark in PLAYERS)), cell) for cell, n in enumerate(ACTIONS)]
        return Template((player, Literal(":"), *(part for cell in cells for part in (Literal(" "), cell)))), ""
    free = Repeat("num_legal", MAX_MOVES, (Choice("legal_move", ACTIONS),))
    turn = Template((Literal("It is "), player, Literal("'s turn on this board:\n")))
    return turn + board_template() + Template((Literal("\nFree squares: "), free, Literal("."))), _POLICY


def policy(view: View) -> Chat:
    user = f"It is {view.player}'s turn on this board:\n{view.board}\nFree squares: {', '.join(view.legal)}."
    return Chat.of(user, _POLICY, view=view)


def value(view: View, action: str) -> Chat:
    return Chat.of(f"{_question(view, action)}\nEvaluate the move.", _VALUE, view=view, action=action)


def monte_carlo(view: View, action: str, lines: Sequence[Line]) -> Chat:
    games = "\n\n".join(f"Game {n}:\n{_told(line)}" for n, line in enumerate(lines, 1))
    user = f"{_question(view, action)}\n\n{games}\n\nEvaluate the move."
    return Chat.of(user, _MONTE_CARLO, view=view, action=action, lines=tuple(lines))


def temporal_difference(view: View, action: str, reached: Sequence[Evaluated]) -> Chat:
    parts = [
        f"Continuation {n}:\n{_told(line)}" + (f"\nIts evaluation: {text}" if text else "")
        for n, (line, text) in enumerate(reached, 1)
    ]
    user = f"{_question(view, action)}\n\n" + "\n\n".join(parts) + "\n\nEvaluate the move."
    return Chat.of(user, _TEMPORAL_DIFFERENCE, view=view, action=action, reached=tuple(reached))


def improve(view: View, evaluations: Sequence[tuple[str, str]]) -> Chat:
    listed = "\n\n".join(f"Evaluation of move {action}:\n{text}" for action, text in evaluations)
    moves = ", ".join(dict.fromkeys(action for action, _ in evaluations))
    user = (
        f"It is {view.player}'s turn on this board:\n{view.board}\nPossible moves: {moves}.\n\n{listed}\n\n"
        f"Which of the moves {moves} is best for {view.player}?"
    )
    return Chat.of(user, _IMPROVE, view=view, evaluations=tuple(evaluations))


def read_move(reply: str, legal: Sequence[str]) -> Move:
    """The move under "best_move". Problems: those of `read_json`, "no move", "illegal move"."""
    fields, problem = read_json(reply)
    named = fields.get("best_move")
    number = read_number(named)
    word = None if number is None or number != int(number) else str(int(number))
    if word in legal:
        return Move(word, problem)
    missing = "no move" if word is None else "illegal move"
    return Move(None, problem if problem in ("empty", "nothing") else missing)


def read_value(reply: str) -> float | None:
    """The number under "final_evaluation", within [-1, 1]."""
    number = read_number(read_json(reply).fields.get("final_evaluation"))
    return None if number is None else max(-1.0, min(1.0, number))


def clean(reply: str) -> str:
    """The reply's thought and move as one JSON object."""
    fields = read_json(reply).fields
    move = int(read_number(fields["best_move"]))
    thought = fields.get("thought", "")
    thought = thought if isinstance(thought, str) else json.dumps(thought, ensure_ascii=False)  # NaN is no JSON
    return json.dumps({"thought": thought, "best_move": move}, ensure_ascii=False)


def _check(style: str) -> None:
    if style not in STYLES:
        raise ValueError(f"style is {style!r}; choose one of {', '.join(STYLES)}")


def _question(view: View, action: str) -> str:
    return f"It is {view.player}'s turn on this board:\n{view.board}\n{view.player} plays {action}."


def _told(line: Line) -> str:
    moves = "\n".join(f"{s.before.player} plays {s.action}:\n{s.after.board}" for s in line.steps)
    if not line.over:
        return moves
    return f"{moves}\nThe game is over: " + (f"{line.winner} wins." if line.winner else "a draw.")


def squares(board: str) -> str:
    """The nine squares of a drawn board, row by row: "OX34O67X9"."""
    return "".join(character for character in board if character in "OX123456789")


def _compact_policy(view: View) -> Chat:
    return Chat.of(f"{view.player}: {_numbered(squares(view.board))}", view=view)


def _compact_value(view: View, action: str) -> Chat:
    """The move and the board that it leads to."""
    after = squares(view.board).replace(action, view.player)
    return Chat.of(f"{view.player} {action}: {_numbered(after)}", view=view, action=action)


def _numbered(cells: str) -> str:
    """Every square's number, with its mark behind it: a small model tells O on 1 from O on 5 by the token before it."""
    return " ".join(f"{n}{cell}" if cell in "OX" else cell for n, cell in enumerate(cells, 1))
