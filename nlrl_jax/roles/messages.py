"""The texts of an episode that is played as a chat: what its messages say, and how a reply's action is read.

system      the rules, and a sentence that shows the form of a reply
user        the goal and the first observation
assistant   a reply of any length, with an action in it
user        the next observation
"""

from __future__ import annotations

import dataclasses

from nlrl_jax.roles.actions import EMPTY, NO_ACTION, read_last_action
from nlrl_jax.roles.dialogues import Dialogue, History
from nlrl_jax.types import Chat, HostGame

NOTHING = "nothing"  # the action of an empty reply, which no game takes


def system_text(game: HostGame, compact: bool = False) -> str:
    """The system message of a game's conversations. compact: for a model that knows the game, nothing."""
    return "" if compact else "\n".join(filter(None, (game.rules, reply_form(game))))


def reply_form(game: HostGame) -> str:
    """The sentence that shows the form of a reply: the game's own, or the one that `read_last_action` reads.

    Where the game has tools it is empty, as the chat template describes the form of calls.
    """
    if game.tools:
        return ""
    if game.reply_form or game.read_action:
        return game.reply_form
    example = game.actions[0] if game.actions else "..."
    return f'End each reply with a line that holds one action, in the form "Action: {example}".'


def first_message(goal: str, observation: str) -> str:
    """The first user message of an episode."""
    # Games of observations alone have no goal, or repeat it.
    return "\n".join(filter(None, (goal and f"Goal: {goal}", observation)))


def shortened_message(goal: str, first: str, dropped: int, observation: str) -> str:
    """The first user message where the oldest turns have left a full context.

    The first observation stays, as it may hold the rules.
    """
    turns = f"{dropped} turn{'s' * (dropped != 1)}"
    return f"{first_message(goal, first)}\n\n[{turns} later; they are left out]\n{observation}"


def read_reply(text: str, game: HostGame) -> tuple[str, str]:
    """Reads the action in a reply: (the action as the game gets it, problem or "").

    Where there is none, the game gets the reply as it is if it reads replies itself (`HostGame.read_action`), else its
    last line.
    """
    text = text.strip()
    if game.read_action:
        action = game.read_action(text)
        return (text, NO_ACTION if text else EMPTY) if action is None else (action, "")
    action, problem = read_last_action(text, game.actions)
    return action or text.rpartition("\n")[2].strip() or NOTHING, problem


@dataclasses.dataclass(frozen=True, eq=False)
class ChatDialogue(Dialogue):
    """A dialogue whose prompts are messages, for language models that are asked by texts; `instructions`: the system's.

    A reply, with all its lines, is the note before its action in the history.
    """

    game: HostGame | None = None

    @classmethod
    def about(cls, game: HostGame, compact: bool, **options) -> ChatDialogue:
        """Makes a dialogue about a game. Tools are described by the game itself. Arguments: see `Dialogue.of`."""
        rules = dataclasses.replace(game, tools=()) if game.tools else game
        return cls(system_text(rules, compact), "", game=game, **options)

    def chat(self, history: History, line: str) -> Chat:
        """Prompts the model for its next message; `line` is passed on."""
        dropped, first = len(history.past), first_message(history.goal, history.observation)
        if dropped:
            first = shortened_message(history.goal, history.opening, dropped, history.observation)
        messages = [{"role": "system", "content": self.instructions}] if self.instructions else []
        messages.append({"role": "user", "content": first})
        reply = history.note
        for action, observation, note in history.steps:
            messages.append({"role": "assistant", "content": reply or f"Action: {action}"})
            messages.append({"role": "user", "content": observation})
            reply = note
        return Chat(tuple(messages), {"history": history, "line": line})

    def read(self, text: str) -> tuple[str, str]:
        """Reads the action in a reply, see `read_reply`."""
        return read_reply(text, self.game)
