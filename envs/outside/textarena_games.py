"""TextArena's games (textarena 0.7.4) as `textarena:GuessTheNumber-v0`, also those of several players.

The default observation of a game repeats the whole episode; here each step shows what the game has said since. The
first prompt is the goal, which stays in every prompt. An action stands in square brackets; in games of conversation,
whose replies TextArena takes as they are, it is the whole reply. One invalid move is forgiven, a second one in a row
ends the game. Rewards come at the end.
"""

from __future__ import annotations

import difflib
import random
import sys
from collections.abc import Callable
from typing import Any

import textarena
from textarena.envs.registration import ENV_REGISTRY
from textarena.wrappers import ActionFormattingWrapper

from nlrl_jax.envs import outside
from nlrl_jax.envs.outside.episodes import Beginning, LiveEpisode
from nlrl_jax.envs.outside.episodes import host_game as of_episodes
from nlrl_jax.envs.outside.textarena_players import LEARNER, Table, joined, let_others_move, messages_of
from nlrl_jax.roles import reply_forms
from nlrl_jax.types import HostGame, Outcome

_HORIZON = 60  # steps where a game names no limit
_KIND = textarena.ObservationType
_REFUSED = "Invalid Move: "


def host_game(
    name: str, max_steps: int = 0, players: int = 0, opponent: str | Callable[[str], str] = "random", **options
) -> HostGame:
    """Makes one of TextArena's games.

    Args:
      players: 0: as few as the game takes. The first one learns.
      opponent: who plays the others: "random" (a legal move among those that the game shows), `my_module:function`,
        text that the player has heard so far -> move, or such a function whose replies are free, as a model's.
      **options: of `textarena.make`.

    Raises:
      ValueError: there is no such game; it needs another Python; what it raises.
    """
    name = name.removesuffix("-train").removesuffix("-raw")
    if name not in ENV_REGISTRY:
        games = [game for game in ENV_REGISTRY if not game.endswith(("-train", "-raw"))]
        close = difflib.get_close_matches(name, games, n=3, cutoff=0.4)
        raise ValueError(f"TextArena has no game {name!r}; did you mean {' or '.join(close) or 'GuessTheNumber-v0'}?")
    players = players or _least_players(name, options)

    def new_episode(kind: str, seed: int) -> Beginning:
        env = _made(name, options)
        env.reset(num_players=players, seed=seed)
        table = Table(env, chance=random.Random(seed))
        done = let_others_move(table, reply)
        messages = messages_of(env)
        prompts = [text for text, kind in messages if kind == _KIND.PROMPT]
        return Beginning(table, "\n".join(prompts), joined(messages, _KIND.PROMPT), done)

    def move(episode: LiveEpisode, action: str) -> Outcome:
        table, env = episode.env, episode.env.env
        done, _ = env.step(action)
        valid = done or not getattr(env.state, "error_count", 0)
        done = done or let_others_move(table, reply)
        if not done:
            return Outcome(None, joined(messages_of(env)), valid=valid)
        rewards, info = env.close()
        reward, mine = (rewards or {}).get(LEARNER, 0), dict(info.get(LEARNER, {}))
        if isinstance(reward, str):  # Countdown, Cryptarithm, Slitherlink: the reason stands where the reward belongs
            reward, mine["reason"] = float(mine["reason"].rpartition(":")[2]), f"{_REFUSED}{reward}"
        env.state.current_player_id = LEARNER  # whose last messages are read
        text = "\n".join(filter(None, (joined(messages_of(env)), mine.get("reason", ""))))
        return Outcome(None, text, reward, True, reward == 1, valid=not mine.get("invalid_move", False))

    wrappers = ENV_REGISTRY[name].default_wrappers or ()
    form = "brackets" if ActionFormattingWrapper in wrappers else "whole"
    reader = reply_forms.FORMS[form].action_in
    if form == "brackets":
        reader = reply_forms.with_marks(reader, "[{}]")
    example = reply_forms.FORMS[form].example
    reply = None if opponent == "random" else _opponent(opponent, reader, example)
    limit = new_episode("", 0).env.env.state.max_turns
    # An invalid move is no turn, and each turn forgives one.
    horizon = 2 * limit + 2 if limit else _HORIZON
    return of_episodes(
        f"textarena:{name}",
        new_episode,
        move,
        rules="",
        actions=(),
        max_steps=max_steps or horizon,
        score="reward",
        read_action=reader,
        reply_form=example,
    )


def _opponent(
    opponent: str | Callable[[str], str], reader: Callable[[str], str | None], example: str
) -> Callable[[str], str]:
    """The function that plays the others. Raises ValueError: there is none of this name.

    Args:
      reader, example: of actions in free replies, and the sentence that shows their form.
    """
    if not callable(opponent):
        if ":" not in str(opponent):
            raise ValueError(f"opponent={opponent}: write my_module:function, or --opponent {opponent} for a model")
        return outside.function_named(opponent, "opponent")

    def reply(heard: str) -> str:
        text = opponent(f"{heard}\n{example}".strip())
        return reader(text) or text

    return reply


def _made(name: str, options: dict[str, Any]) -> Any:
    try:
        return textarena.make(f"{name}-raw", **options)
    except SyntaxError:  # a few games are written for a later Python than the package declares
        version = ".".join(map(str, sys.version_info[:2]))
        raise ValueError(f"TextArena's {name} cannot be read by Python {version}; use Python 3.12") from None


def _least_players(name: str, options: dict[str, Any]) -> int:
    """Finds the smallest number of players that a game begins with; each game refuses others by an error of its own."""
    errors = []
    _made(name, options)  # an option that it does not take is no matter of players
    for players in range(1, 9):
        try:
            _made(name, options).reset(num_players=players, seed=0)
            return players
        except (AssertionError, ValueError, KeyError, IndexError, TypeError) as error:
            errors.append(f"{players} players: {error}")
    raise ValueError(f"TextArena's {name} begins with none of 1 to 8 players ({errors[-1]})")
