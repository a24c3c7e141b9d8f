"""Several actions in one reply of a game that is played by text on the host, as in MS-GRPO's own prompt.

    Action: Right || Right || Down

An action string of the paper (MS-GRPO, section "Language Agent Policy") is a sequence, and psi reads all of it. Here,
as there, actions after the one that ends the episode are not played, and surplus ones make the reply invalid once.

Departure: a part that is no action makes the reply invalid and takes no step, unless no part is one; then the reply
takes one, as any reply without an action does in transcripts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from nlrl_jax.roles.actions import labelled_line
from nlrl_jax.roles.json_reply import folded
from nlrl_jax.text.host import ONE_ACTION
from nlrl_jax.types import HostGame, Outcome

SEPARATOR = " || "
_MARKS = " \t*_`\"'.!:()[]{}<>"  # that may stand around an action
_BETWEEN = re.compile(r"\s*(?:\|+|[,;]|[-=]+>|\u2192|\b(?:and\s+)?then\b|\band\b)\s*", re.IGNORECASE)


def in_sequences(game: HostGame, max_actions: int) -> HostGame:
    """Makes a turn of a game a sequence of its actions: the observation that follows is that after the last one.

    Args:
      game: one that lists its actions and reads replies in the usual form.
      max_actions: actions of a reply, 2 or more. Rewards of a reply's actions are added.

    Raises:
      ValueError: `max_actions` is below 2, or the game has replies of its own form.
    """
    if max_actions < 2:
        raise ValueError(f"actions of a reply are at most {max_actions}; a sequence has 2 or more")
    if not game.actions or game.read_action or game.tools or game.reply_form:
        reason = "its replies have a form of their own" if game.actions else "it lists no actions"
        raise ValueError(f"{game.name} takes one action a turn, as {reason}; give --turn_actions 1")

    def read_line(text: str) -> str | None:
        line = labelled_line(text)
        parts, _ = parse(line, game.actions)
        return line if parts else None

    def step(states: Sequence[Any], texts: Sequence[str]) -> list[Outcome]:
        sequences, valid = [], []
        for text in texts:
            actions, is_whole = parse(text, game.actions)
            valid.append(is_whole and len(actions) <= max_actions)
            sequences.append(actions[:max_actions] or [text])
        outcomes: list[Outcome | None] = [None] * len(texts)
        rewards, idle = [0.0] * len(texts), [True] * len(texts)
        states = list(states)
        for t in range(max_actions):
            playing = [
                i for i, actions in enumerate(sequences) if t < len(actions) and not (outcomes[i] and outcomes[i].done)
            ]
            if not playing:
                break
            played = game.step([states[i] for i in playing], [sequences[i][t] for i in playing])
            for i, outcome in zip(playing, played, strict=True):
                outcomes[i], states[i] = outcome, outcome.state
                rewards[i] += outcome.reward
                idle[i] &= outcome.idle
                # A step into a wall is idle and no fault; another that the game refuses is one.
                valid[i] &= outcome.valid or outcome.idle
        return [
            outcome._replace(reward=reward, valid=ok and not nothing, idle=ok and nothing)
            for outcome, reward, ok, nothing in zip(outcomes, rewards, valid, idle, strict=True)
        ]

    sample = SEPARATOR.join(game.actions[:2])
    return dataclasses.replace(
        game,
        rules=game.rules.removesuffix(ONE_ACTION).rstrip(),
        step=step,
        read_action=read_line,
        reply_form=f'End each reply with a line that holds 1 to {max_actions} actions, in the form "Action: {sample}".',
        max_actions_per_turn=max_actions,
    )


def parse(line: str, actions: Sequence[str]) -> tuple[list[str], bool]:
    """Reads a line as a sequence of actions: (those in it, whether it holds nothing else)."""
    words = {folded(action): action for action in actions}
    parts = [folded(part.strip(_MARKS)) for part in _BETWEEN.split(line)]
    named = [words.get(part) for part in parts if part]
    return [action for action in named if action], bool(named) and all(named)
