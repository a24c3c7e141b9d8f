"""Readable episodes: records for JSON, and a view for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from nlrl_jax.rollouts.text_games import Episodes
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.types import TextGame

# Control characters become visible symbols; characters that reorder or hide text become U+FFFD.
_HIDDEN = [*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000), 0xFEFF]
_VISIBLE = (
    {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
    | {0x7F: "\u2421"}
    | dict.fromkeys(_HIDDEN, "\ufffd")
)


def printable(text: str) -> str:
    """`text` without terminal escapes, NUL, lone surrogates or direction overrides: each becomes a visible symbol."""
    return text.translate(_VISIBLE)


def transcripts(
    policy: LanguageAgentPolicy, game: TextGame, episodes: Episodes, rows: Sequence[int]
) -> list[dict[str, Any]]:
    """Some of B played episodes as plain records. Host only.

    Args:
      policy: the player; its tokenizer decodes the tokens.
      game: its `board` draws the states.
      episodes: from `text_games.play`, on the device or not.
      rows: positions of the episodes.

    Returns:
      One dict per row: "success" (None where the game has no such notion), "terminated", "env_return", "final_board"
      and "turns", without the padding: "board", "prompt", "reply", "actions" (valid words, in order), "steps" (how
      many of them the game took), "invalid" (count), "format_penalty", "reward" (the environment's), "cut" (the
      reply hit max_tokens).

    Raises:
      IndexError: a row that does not exist.
    """
    num = np.shape(episodes.terminated)[0]
    for row in rows:
        if not 0 <= row < num:
            raise IndexError(f"episode {row} does not exist; there are {num}, counted from 0")
    rows = np.asarray(list(rows), np.int32)

    def pick(tree: Any, axis: int) -> Any:
        return jax.device_get(jax.tree.map(lambda leaf: leaf.take(rows, axis=axis), tree))

    turns = pick(episodes.turns, 1)
    final_fields, success, terminated = pick((episodes.final_fields, episodes.success, episodes.terminated), 0)
    return [
        {
            "success": bool(success[i]) if game.success is not None else None,
            "terminated": bool(terminated[i]),
            "env_return": float(turns.reward[:, i].sum()),
            "final_board": game.board.render(_at(final_fields, i)),
            "turns": [_turn(policy, game, turns, t, i) for t in range(len(turns.active)) if turns.active[t, i]],
        }
        for i in range(len(rows))
    ]


def _at(tree: Any, *index: int) -> Any:
    return jax.tree.map(lambda x: x[index], tree)


def _turn(policy, game, turns, t: int, i: int) -> dict[str, Any]:
    turn = _at(turns.turn, t, i)
    return {
        "board": game.board.render(_at(turns.fields, t, i)),
        "prompt": policy.prompt_text(turn.prompts, int(turn.prompt_lengths)),
        "reply": policy.reply_text(turn.replies, int(turn.reply_lengths)),
        "actions": [game.actions[a] for a in turn.parsed.actions if a >= 0],
        "steps": int(turns.steps[t, i]),
        "invalid": int(turns.invalid[t, i]),
        "format_penalty": float(turn.parsed.format_penalty),
        "reward": float(turns.reward[t, i]),
        "cut": not bool(turn.ended),
    }


def check_episode(record: Any) -> None:
    """Raises KeyError, TypeError, ValueError or AttributeError if a record lacks what an episode shows."""
    outcome(record), record["final_board"]
    for turn in record["turns"]:
        turn["board"], turn["prompt"], turn["reply"], turn["actions"], turn["reward"]


def outcome(episode: dict[str, Any]) -> str:
    """How an episode ended, in a few words."""
    if episode.get("success") is not None:
        word = "success" if episode["success"] else "failure"
    else:
        word = "over" if episode.get("terminated", True) else "stopped at the limit"
    return f"{word}, return {episode['env_return']:g}"


def print_transcript(episode: dict[str, Any], console: Any = None, prompts: bool = False) -> None:
    """Prints one record of `transcripts` in the terminal.

    Args:
      console: a `rich.console.Console`; a new one by default.
      prompts: print the prompts too.
    """
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    for number, turn in enumerate(episode["turns"], 1):
        table = Table.grid(padding=(0, 3))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        reply = Text(printable(turn["reply"]), overflow="fold")
        reply.highlight_regex(r"</?[A-Za-z][A-Za-z0-9_]*>", "cyan")
        table.add_row(Text(printable(turn["board"])), reply)
        notes = Text(" || ".join(turn["actions"]) or "no action", style="bold")
        notes.append(f"   reward {turn['reward']:g}", style="default")
        for flaw in flaws(turn):
            notes.append(f"   {flaw}", style="red")
        body = Table.grid()
        if prompts:
            body.add_row(Text(printable(turn["prompt"]), style="dim", overflow="fold"))
        body.add_row(table)
        body.add_row(notes)
        console.print(Panel(body, title=f"turn {number}", title_align="left", border_style="dim"))
    style = "green" if episode.get("success") else "red" if episode.get("success") is False else "default"
    end = Text.assemble(printable(episode["final_board"]), "\n", (outcome(episode), f"bold {style}"))
    console.print(Panel(end, title="end", title_align="left", border_style="dim"))


def flaws(turn: dict[str, Any]) -> list[str]:
    """The faults of a reply as short labels."""
    labels = []
    if turn.get("invalid"):
        labels.append(f"{turn['invalid']} invalid action{'s' * (turn['invalid'] != 1)}")
    if turn.get("format_penalty"):
        labels.append(f"format penalty {turn['format_penalty']:g}")
    if turn.get("cut"):
        labels.append("reply cut")
    return labels
