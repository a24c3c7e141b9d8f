"""The other players of a TextArena game, and what the game says to each."""

from __future__ import annotations

import copy
import dataclasses
import random
import re
from collections.abc import Callable
from typing import Any

import textarena

from nlrl_jax.text import generators

LEARNER = 0
_TRIED = 200  # moves that a random player tries
_KIND = textarena.ObservationType
_MOVE = re.compile(r"\[[^\[\]\n]{1,40}\]")
_LISTED = re.compile(r"(?:available|valid|legal) (?:moves|actions)", re.IGNORECASE)


@dataclasses.dataclass
class Table:
    """A game with its other players: env, the game; heard, what each of them was told; chance, of random ones."""

    env: Any
    heard: dict[int, str] = dataclasses.field(default_factory=dict)
    chance: random.Random = dataclasses.field(default_factory=random.Random)


def messages_of(env: Any) -> list[tuple[str, Any]]:
    """Takes what the game has said to the player whose turn it is, without moves as they were written.

    Countdown, Cryptarithm and Slitherlink file a move with its fields in other places: the number of its player as the
    text, and the move as the kind.
    """
    _, messages = env.get_observation()
    said = (message for message in messages if isinstance(message[2], _KIND) and message[2] != _KIND.PLAYER_ACTION)
    return [(text.strip(), kind) for _, text, kind in said]


def joined(messages: list[tuple[str, Any]], *without: Any) -> str:
    return "\n".join(text for text, kind in messages if kind not in without)


def let_others_move(table: Table, reply: Callable[[str], str] | None) -> bool:
    """Plays the other players until it is the learner's turn; returns whether the game has ended."""
    env, done = table.env, False
    while not done and env.state.current_player_id != LEARNER:
        player = env.state.current_player_id
        heard = table.heard[player] = f"{table.heard.get(player, '')}\n{joined(messages_of(env))}".strip()
        done, _ = env.step(reply(heard) if reply else _random_move(table, heard))
    return done


def _random_move(table: Table, heard: str) -> str:
    """Draws a legal move: one that the game has listed, or one in brackets that it has shown, with other numbers.

    Each is tried on a copy of the game. The last one is played where none is legal.
    """
    listed = [match.end() for match in _LISTED.finditer(heard)]
    recent = _MOVE.findall(heard, listed[-1]) if listed else []
    examples = _MOVE.findall(heard) or ["[0]"]
    player, refused, move = table.env.state.current_player_id, set(), examples[0]
    for i in range(_TRIED):
        if recent and i < _TRIED // 4:
            move = table.chance.choice(recent)
        else:  # the numbers of an example are only examples
            largest = table.chance.choice((3, 9))
            move = re.sub(r"\d+", lambda digits: str(table.chance.randint(0, largest)), table.chance.choice(examples))  # noqa: B023
        if move in refused:
            continue
        with generators.preserved():
            trial = copy.deepcopy(table.env)
            trial.step(move)
        is_lost = (trial.state.rewards or {}).get(player, 0) < 0 and trial.state.game_info[player]["invalid_move"]
        if not trial.state.made_invalid_move and not is_lost:
            break
        refused.add(move)
    return move
