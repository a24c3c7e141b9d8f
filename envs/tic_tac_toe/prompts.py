"""The prompts of the natural-language actor-critic on tic-tac-toe (NLRL, appendix C.3), and the readers of its replies.

The wording is ours; roles, fields and JSON formats are the paper's. `final_evaluation` is a number from -1 (X wins) to
1 (O wins). Styles:
- "paper": as the paper has it, with one example each for the policy and for the Monte-Carlo aggregator, in the system
  message;
- "paper_zero_shot": the same without examples;
- "compact", for very small models, is an addition: the board (for a value the one after the move) and a short thought,
  in the same JSON; aggregators and improver are those of "paper_zero_shot".
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence

from nlrl_jax.envs.tic_tac_toe.rules import ACTIONS, LINES, MAX_MOVES, PLAYERS, RULES, board_template
from nlrl_jax.roles.board_games import ActorCriticRoles, Evaluated, Line, MoveReply, Ply, View
from nlrl_jax.roles.json_reply import read_json, read_number
from nlrl_jax.text.template import Choice, Literal, Repeat, Template
from nlrl_jax.types import Chat

STYLES = ("paper", "paper_zero_shot", "compact")

_POLICY = f"""{RULES}

You are a strong player. Find the best move for the side to move. Answer with a JSON object with two fields: \
"thought", your step-by-step reasoning, and "best_move", the number of a free position."""
_EVALUATION = """\
Answer with a JSON object with two fields. "thought" is an object with "Reflection" (what happened after the move), \
"Win probability" (for O and for X), "Threat" (lines that can be completed with the next mark) and "Potential \
strategies". "final_evaluation" is a number: 1 if O is winning, -1 if X is winning, 0 for a draw, or a value in \
between."""
_VALUE = f"""{RULES}

You evaluate moves. You are given a board and a move, and evaluate the board after the move.
{_EVALUATION}"""
_MONTE_CARLO = f"""{RULES}

You evaluate moves by their results. You are given a board, a move, and complete games that were played on from there. \
Base your evaluation on these games alone, not on what you know about tic-tac-toe.
{_EVALUATION}"""
_TEMPORAL_DIFFERENCE = f"""{RULES}

You evaluate moves by the boards they lead to. You are given a board, a move, and several continuations up to the same \
side's next turn, each with an evaluation of the board it leads to. Combine these into an evaluation of the move, and \
rely on nothing else.
{_EVALUATION}"""
_IMPROVE = f"""{RULES}

You choose a move by comparing evaluations. Each possible move comes with an evaluation: a JSON object whose \
"final_evaluation" is 1 if O is winning, -1 if X is winning and 0 for a draw. Go by these evaluations alone, not by \
what you know about tic-tac-toe. Answer with nothing but a JSON object with two fields: "thought", your step-by-step \
comparison, and "best_move", the number of the move to play."""


def roles(style: str = "paper") -> ActorCriticRoles:
    """Returns the prompts in one style.

    Raises:
      ValueError: an unknown style.
    """
    _check(style)
    example = style == "paper"
    return ActorCriticRoles(
        policy=_compact_policy if style == "compact" else functools.partial(policy, example=example),
        value=_compact_value if style == "compact" else value,
        monte_carlo=functools.partial(monte_carlo, example=example),
        temporal_difference=temporal_difference,
        improve=improve,
        read_move=read_move,
        read_value=read_value,
        clean=clean,
        contradicts=contradicts,
        correction=correction,
    )


def policy_template(style: str = "paper", threats: bool = False) -> tuple[Template, str]:
    """Returns the chat of `roles(style).policy` as data: (the user's message, reading `rules.fields`; the system's).

    For a policy that plays under `jax.jit`. Errors: see `roles`.

    Args:
      threats: a last line names the positions that would complete a row, as `rule_based.threats` does; the template
        then reads `rules.threat_fields` too.
    """
    user, system = _policy_template(style)
    if not threats:
        return user, system
    parts: list[Literal | Repeat] = [Literal("\nThreat:")]
    for player in PLAYERS:
        item = (Literal(" "), Choice(f"threat_{player}", ACTIONS))
        listed = Repeat(f"num_threat_{player}", MAX_MOVES, item, separator="", empty=" nobody")
        parts += [Literal(f" {player}"), listed, Literal("," if player == PLAYERS[0] else ".")]
    return user + Template(tuple(parts)), system


def _policy_template(style: str) -> tuple[Template, str]:
    _check(style)
    player = Choice("player", PLAYERS)
    if style == "compact":
        cells = [Choice("cells", (n, *(n + mark for mark in PLAYERS)), cell) for cell, n in enumerate(ACTIONS)]
        return Template((player, Literal(":"), *(part for cell in cells for part in (Literal(" "), cell)))), ""
    free = Repeat("num_legal", MAX_MOVES, (Choice("legal_move", ACTIONS),))
    turn = Template((Literal("It is "), player, Literal("'s turn on this board:\n")))
    user = turn + board_template() + Template((Literal("\nFree positions: "), free, Literal(".")))
    return user, _POLICY + (policy_example() if style == "paper" else "")


def policy(view: View, example: bool = False) -> Chat:
    user = f"It is {view.player}'s turn on this board:\n{view.board}\nFree positions: {', '.join(view.legal)}."
    return Chat.of(user, _POLICY + (policy_example() if example else ""), view=view)


def value(view: View, action: str) -> Chat:
    return Chat.of(f"{_question(view, action)}\nEvaluate the move.", _VALUE, view=view, action=action)


def monte_carlo(view: View, action: str, lines: Sequence[Line], example: bool = False) -> Chat:
    games = "\n\n".join(f"Game {n}:\n{_moves(line)}" for n, line in enumerate(lines, 1))
    user = f"{_question(view, action)}\n\n{games}\n\nEvaluate the move."
    system = _MONTE_CARLO + (monte_carlo_example() if example else "")
    return Chat.of(user, system, view=view, action=action, lines=tuple(lines))


def temporal_difference(view: View, action: str, reached: Sequence[Evaluated]) -> Chat:
    parts = [
        f"Continuation {n}:\n{_moves(line)}" + (f"\nEvaluation of this board: {text}" if text else "")
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


def read_move(reply: str, legal: Sequence[str]) -> MoveReply:
    """Reads the move under "best_move". Problems: those of `read_json`, "no move", "illegal move"."""
    fields, problem = read_json(reply)
    named = fields.get("best_move")
    number = read_number(named)
    word = None if number is None or number != int(number) else str(int(number))
    if word in legal:
        return MoveReply(word, problem)
    missing = "no move" if word is None else "illegal move"
    return MoveReply(None, problem if problem in ("empty", "nothing") else missing)


def read_value(reply: str) -> float | None:
    """Reads the number under "final_evaluation", from -1 to 1; None where there is none, or another one."""
    number = read_number(read_json(reply).fields.get("final_evaluation"))
    return number if number is not None and -1 <= number <= 1 else None


_COUNTS = re.compile(r"(\d+) of (\d+) games are won by O, (\d+) by X,( \d+)(?= drawn)")


def contradicts(reply: str) -> bool:
    """Whether an evaluation contradicts itself: its counts of games do not add up, or its number is not theirs.

    "1 of 5 games are won by O, 3 by X, 1 drawn" is -0.4. One without counts or without a number does not.
    """
    match, number = _COUNTS.search(reply), read_value(reply)
    if match is None or number is None:
        return False
    won, games, lost, drawn = map(int, match.groups())
    return not games or won + lost + drawn != games or abs(number - (won - lost) / games) > 0.0501  # one digit


def correction(reply: str) -> tuple[str, str] | None:
    """Corrects an evaluation that contradicts itself; None where it does not.

    Returns (the text as far as it is right, its continuation).

    None also where more games are won than there are: then nothing says which count is wrong.
    """
    match = _COUNTS.search(reply)
    if match is None or not contradicts(reply):
        return None
    won, games, lost, drawn = map(int, match.groups())
    head, name, tail = reply.rpartition('"final_evaluation":')
    if won + lost > games or not games or not name:
        return None
    rest = re.sub(r"^\s*[-+\d.eE]+", f" {json.dumps(round((won - lost) / games, 1))}", tail)
    if won + lost + drawn == games:
        return head + name, rest
    start, end = match.span(4)
    return reply[:start], f" {games - won - lost}{head[end:]}{name}{rest}"


def clean(reply: str) -> str:
    """Rewrites the reply's thought and move as one JSON object."""
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


def _moves(line: Line) -> str:
    """Lists the moves of a line, the board after each, and the result with the line that won."""
    moves = "\n".join(f"{s.before.player} plays {s.action}:\n{s.after.board}" for s in line.steps)
    if not line.over:
        return moves
    if line.winner is None:
        return f"{moves}\nThe game is over: a draw."
    cells = squares(line.steps[-1].after.board)
    row = next(row for row in LINES if all(cells[cell] == line.winner for cell in row))
    won = ", ".join(ACTIONS[cell] for cell in row)
    return f"{moves}\nThe game is over: {line.winner} wins. The winning line is {won}."


@functools.cache
def policy_example() -> str:
    """Writes one question to the policy with a good reply: X must stop the line 4, 5, 6."""
    thought = (
        "O has 5 and 6, so marking 4 next would complete 4, 5, 6. X has only one mark, on 1, and cannot win this turn. "
        "X must block O by taking 4. That also gives X 1 and 4, and a threat on 7."
    )
    return _example(policy(_view("X...OO...", "X")), {"thought": thought, "best_move": 4})


@functools.cache
def monte_carlo_example() -> str:
    """Writes one question to the Monte-Carlo aggregator with a good reply: X did not stop 4, 5, 6, and O won."""
    boards = _view("X...OO...", "X"), _view("XX..OO...", "O"), _view("XX.OOO...", "X")
    line = Line((Ply(boards[0], "2", boards[1]), Ply(boards[1], "4", boards[2])), True, "O")
    thought = {
        "Reflection": "X extended its own row to 1 and 2 but left 4 open. O took 4 immediately and won.",
        "Win probability": "High for O, low for X.",
        "Threat": "After the move O threatens 4, 5, 6 and X threatens 1, 2, 3, but it is O's turn.",
        "Potential strategies": "X should take 4 to block O. O only needs to complete its line.",
    }
    return _example(monte_carlo(boards[0], "2", [line]), {"thought": thought, "final_evaluation": 0.9})


def _example(chat: Chat, reply: dict) -> str:
    return f"\n\nEXAMPLE\nuser:\n{chat.messages[-1]['content']}\nassistant:\n{json.dumps(reply)}"


def _view(cells: str, player: str) -> View:
    """A position of nine characters such as "X...OO..."."""
    board = board_template().render({"cells": [".OX".index(cell) for cell in cells]})
    return View(board, player, tuple(n for n, cell in zip(ACTIONS, cells) if cell == "."))


def squares(board: str) -> str:
    """Extracts the nine cells of a drawn board, row by row: "OX34O67X9"."""
    return "".join(character for character in board if character in "OX123456789")


def _compact_policy(view: View) -> Chat:
    return Chat.of(f"{view.player}: {_numbered(squares(view.board))}", view=view)


def _compact_value(view: View, action: str) -> Chat:
    """The move and the board after it."""
    after = squares(view.board).replace(action, view.player)
    return Chat.of(f"{view.player} {action}: {_numbered(after)}", view=view, action=action)


def _numbered(cells: str) -> str:
    """Writes every position's number, then its mark: a small model tells O on 1 from O on 5 by the token before it."""
    return " ".join(f"{n}{cell}" if cell in "OX" else cell for n, cell in enumerate(cells, 1))
