"""TextArena's games (textarena 0.7.4) as `textarena:GuessTheNumber-v0`, also those of several players.

The default observation of a game repeats the whole episode; here each step shows what the game has said since. The
first prompt is the goal, which stays in every prompt. An action stands in square brackets; in games of conversation,
whose replies TextArena takes as they are, it is the whole reply. One invalid move is forgiven, a second one in a row
ends the game. Rewards come at the end.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import random
import re
import sys
from collections.abc import Callable
from typing import Any

import textarena
from textarena.envs.registration import ENV_REGISTRY
from textarena.wrappers import ActionFormattingWrapper

from nlrl_jax.envs import outside
from nlrl_jax.envs.outside.episodes import Beginning, LiveEpisode
from nlrl_jax.envs.outside.episodes import host_game as of_episodes
from nlrl_jax.roles import reply_forms
from nlrl_jax.text import generators
from nlrl_jax.types import HostGame, Outcome

_MINE = 0  # the player that learns
_HORIZON, _TRIED = 60, 200  # steps where a game names no limit; moves that a random opponent tries
_KIND = textarena.ObservationType
_MOVE = re.compile(r"\[[^\[\]\n]{1,40}\]")
_LISTED = re.compile(r"(?:available|valid|legal) (?:moves|actions)", re.IGNORECASE)


@dataclasses.dataclass
class Table:
    """A game with its other players: env, the game; heard, what an opponent was told; chance, of random ones."""

    env: Any
    heard: str = ""
    chance: random.Random = dataclasses.field(default_factory=random.Random)


def host_game(name: str, max_steps: int = 0, players: int = 0, opponent: str = "random", **options) -> HostGame:
    """Makes one of TextArena's games.

    Args:
      players: 0: as few as the game takes. The first one learns.
      opponent: who plays the others: "random" (a legal move among those that the game shows), or `my_module:function`,
        text that the player has heard so far -> reply.
      **options: of `textarena.make`.

    Raises:
      ValueError: there is no such game; it needs another Python; what it raises.
    """
    name = name.removesuffix("-train").removesuffix("-raw")
    if name not in ENV_REGISTRY:
        games = [game for game in ENV_REGISTRY if not game.endswith(("-train", "-raw"))]
        close = difflib.get_close_matches(name, games, n=3, cutoff=0.4)
        raise ValueError(f"TextArena has no game {name!r}; did you mean {' or '.join(close) or 'GuessTheNumber-v0'}?")
    reply = None if opponent == "random" else outside.function_named(opponent, "opponent")
    players = players or _least_players(name, options)

    def begin(kind: str, seed: int) -> Beginning:
        env = _made(name, options)
        env.reset(num_players=players, seed=seed)
        table = Table(env, chance=random.Random(seed))
        _let_others_move(table, reply)
        messages = _messages(env)
        prompts = [text for text, kind in messages if kind == _KIND.PROMPT]
        return Beginning(table, "\n".join(prompts), _joined(messages, _KIND.PROMPT))

    def move(episode: LiveEpisode, action: str) -> Outcome:
        table, env = episode.env, episode.env.env
        done, _ = env.step(action)
        valid = done or not getattr(env.state, "error_count", 0)
        done = done or _let_others_move(table, reply)
        if not done:
            return Outcome(None, _joined(_messages(env)), valid=valid)
        rewards, info = env.close()
        reward, mine = (rewards or {}).get(_MINE, 0), info.get(_MINE, {})
        env.state.current_player_id = _MINE  # whose last messages are read
        text = "\n".join(filter(None, (_joined(_messages(env)), mine.get("reason", ""))))
        return Outcome(None, text, reward, True, reward == 1, valid=not mine.get("invalid_move", False))

    wrappers = ENV_REGISTRY[name].default_wrappers or ()
    form = "brackets" if ActionFormattingWrapper in wrappers else "whole"
    read = reply_forms.FORMS[form].read
    limit = begin("", 0).env.env.state.max_turns
    return of_episodes(
        f"textarena:{name}",
        begin,
        move,
        rules="",
        actions=(),
        max_steps=max_steps
        or (2 * limit + 2 if limit else _HORIZON),  # an invalid move is no turn, and one is forgiven
        score="reward",
        read_action=reply_forms.with_marks(read, "[{}]") if form == "brackets" else read,
        reply_form=reply_forms.FORMS[form].shown,
    )


def _made(name: str, options: dict[str, Any]) -> Any:
    try:
        return textarena.make(f"{name}-raw", **options)
    except SyntaxError:  # a few games are written for a later Python than the package declares
        version = ".".join(map(str, sys.version_info[:2]))
        raise ValueError(f"TextArena's {name} cannot be read by Python {version}; use Python 3.12") from None


def _least_players(name: str, options: dict[str, Any]) -> int:
    """Finds the smallest number of players that a game begins with; games refuse others by assertions of their own."""
    errors = []
    for players in range(1, 9):
        try:
            _made(name, options).reset(num_players=players, seed=0)
            return players
        except (AssertionError, KeyError, IndexError, TypeError) as error:
            errors.append(f"{players} players: {error}")
    raise ValueError(f"TextArena's {name} begins with none of 1 to 8 players ({errors[-1]})")


def _messages(env: Any) -> list[tuple[str, Any]]:
    """Takes what the game has said to the player whose turn it is, without moves as they were written."""
    _, messages = env.get_observation()
    return [(text.strip(), kind) for _, text, kind in messages if kind != _KIND.PLAYER_ACTION]


def _joined(messages: list[tuple[str, Any]], *without: Any) -> str:
    return "\n".join(text for text, kind in messages if kind not in without)


def _let_others_move(table: Table, reply: Callable[[str], str] | None) -> bool:
    """Plays the other players until it is the learner's turn; returns whether the game has ended."""
    env, done = table.env, False
    while not done and env.state.current_player_id != _MINE:
        table.heard = f"{table.heard}\n{_joined(_messages(env))}".strip()
        done, _ = env.step(reply(table.heard) if reply else _random_move(table))
    return done


def _random_move(table: Table) -> str:
    """Draws a legal move: one that the game has listed, or one in brackets that it has shown, with other numbers.

    Each is tried on a copy of the game. The last one is played where none is legal.
    """
    listed = [match.end() for match in _LISTED.finditer(table.heard)]
    recent = _MOVE.findall(table.heard, listed[-1]) if listed else []
    shown = _MOVE.findall(table.heard) or ["[0]"]
    player, refused, move = table.env.state.current_player_id, set(), shown[0]
    for i in range(_TRIED):
        if recent and i < _TRIED // 4:
            move = table.chance.choice(recent)
        else:  # the numbers of an example are only examples
            largest = table.chance.choice((3, 9))
            move = re.sub(r"\d+", lambda digits: str(table.chance.randint(0, largest)), table.chance.choice(shown))  # noqa: B023
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
