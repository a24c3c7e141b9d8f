"""Episodes as growing transcripts: what a language model continues, and how its lines are read (LAC, appendix C).

    Goal of the agent: go to the green key
    Observation: You see a wall 2 steps right, You see a grey box 3 steps left
    Action: turn left
    Observation: You see a green key 2 steps left and 1 step forward
    Critic: I have turned left and seen a green key. This step is GOOD.
    Action:

A line is one reply. The line after an observation, its note, has a label that depends on the algorithm: a reflection
("Critic"), a thought, a reward or a value; see `NOTES`. The transcript stands in an open assistant message, so that a
model continues it, whatever it was trained on.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import NamedTuple

from nlrl_jax.roles.actions import read_action as read_action
from nlrl_jax.roles.verdicts import BAD as BAD
from nlrl_jax.roles.verdicts import GOOD as GOOD
from nlrl_jax.roles.verdicts import UNKNOWN as UNKNOWN
from nlrl_jax.roles.verdicts import VERDICT
from nlrl_jax.roles.verdicts import before_verdict as before_verdict
from nlrl_jax.roles.verdicts import verdict as verdict
from nlrl_jax.roles.written_numbers import read_number as read_number
from nlrl_jax.types import Chat, Start

PROBABILITY = "The probability that the goal is reached is"

# Label of the note -> what the instructions say about it.
NOTES = {
    "": "",
    "Critic": (
        'After each observation, a line starting with "Critic:" says in a sentence or two what the last action did for '
        f'the goal. It ends with "{VERDICT} GOOD." if the goal needs the step or something that it reveals, with '
        f'"{VERDICT} BAD." if the step was useless or wrong, and with "{VERDICT} UNKNOWN." if the transcript so far '
        "does not tell."
    ),
    "Thought": ('After each observation, a line starting with "Thought:" considers, step by step, what to do next.'),
    "Reward": (
        'After each observation, a line starting with "Reward:" is 1 if the goal has just been reached and 0 otherwise.'
    ),
    "Value": (
        'After an observation there may be a line starting with "Value:". It names the sub-goals that have been '
        'achieved and ends with the fraction they make up, as in "The value is 1/2."'
    ),
}
THINK, THINK_REPLY = "think:", "OK"
THINKING = f'An action may also be a thought: "{THINK} ..." changes nothing, and the next observation is {THINK_REPLY}.'
_TURN = re.compile(  # what begins a line of a transcript, or in some form or other a message
    r"[^\w\n]*(?:(?:goal of the agent|observation|(?:next |final |your |my )?action|critic|thought|think|reward|value|"
    r"reflection|earlier attempts|system|user|assistant|human|ai)s?\b[\s\d*_`\])>]*[:\uff1a]|"
    r"<\||<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>|<(?:system|user|assistant)>|#+\s*(?:system|user|assistant)\b)",
    re.IGNORECASE,
)
_SHORTEST = 8  # tokens of a line, below which shorter ones are no advice
DROP = 2  # the oldest steps leave a full context in groups, so that the text begins alike for some steps


class Step(NamedTuple):
    """a_t, o_{t+1} and the note after it, "" without one."""

    action: str
    observation: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class History:
    """h_t: an episode up to now.

    Attributes:
      goal: e.g. "go to the green key".
      observation: the first one.
      steps: what followed.
      note: after the first observation.
      task: (kind, seed) of the episode, None where it is not known. past: the steps before `observation`, which `trim`
        dropped. No text shows either: they are for models that know the game (`envs.expert`).
      opening: the episode's first observation where steps were dropped, else "".
    """

    goal: str
    observation: str
    steps: tuple[Step, ...] = ()
    note: str = ""
    task: tuple[str, int] | None = None
    past: tuple[Step, ...] = ()
    opening: str = ""

    @classmethod
    def begin(cls, start: Start, task: tuple[str, int]) -> History:
        """Starts the history of an episode."""
        return cls(start.goal, start.observation, task=tuple(task))

    def then(self, step: Step) -> History:
        """Returns the history with one more step."""
        return dataclasses.replace(self, steps=(*self.steps, step))

    def noted(self, note: str) -> History:
        """Returns the history with this note after its last observation."""
        if not self.steps:
            return dataclasses.replace(self, note=note)
        return dataclasses.replace(self, steps=(*self.steps[:-1], self.steps[-1]._replace(note=note)))

    @property
    def last_note(self) -> str:
        """The note after the last observation."""
        return self.steps[-1].note if self.steps else self.note


class Trimmed(NamedTuple):
    """A history that fits a model's context.

    Attributes:
      history: without its oldest steps.
      dropped: how many, for lack of room.
    """

    history: History
    dropped: int


@dataclasses.dataclass(frozen=True, eq=False)
class Dialogue:
    """How histories become prompts.

    Attributes:
      instructions: the game in words and what the lines mean.
      label: of the note's line, one of `NOTES`; "" for none.
      examples: episodes that the model reads first, with notes of the same kind.
      count: tokens of a text. room: tokens of a prompt and what is written after it; 0 is no limit.
      last: maximum steps that a prompt shows, the last ones; 0 is no limit.
      is_set: whether the room is the user's (--context_tokens) and not the model's own.
    """

    instructions: str
    label: str = "Critic"
    examples: tuple[History, ...] = ()
    count: Callable[[str], int] = len
    room: int = 0
    last: int = 0
    is_set: bool = False

    @classmethod
    def of(cls, rules: str, label: str = "Critic", compact: bool = False, thinks: bool = False, **options) -> Dialogue:
        """Makes a dialogue about a game.

        Args:
          rules: the game's, its actions among them.
          label: of the note's line.
          compact: for the built-in models, which know the rules: the instructions are the label alone.
          thinks: the actions include thoughts (ReAct).
        """
        if label not in NOTES:
            raise ValueError(f"label is {label!r}; choose one of {', '.join(map(repr, NOTES))}")
        if compact:
            return cls(label or ("Think" if thinks else "Act"), label, **options)
        lines = (
            f"The transcript starts with the goal, followed by observations and actions, one per line. {NOTES[label]}"
        )
        parts = (rules, lines.strip(), THINKING if thinks else "")
        return cls("\n".join(filter(None, parts)), label, **options)

    def text(self, history: History) -> str:
        """Writes the transcript, without a newline at its end. Notes are shown where there is a label."""
        lines = [f"Goal of the agent: {marked(history.goal)}", f"Observation: {marked(history.observation)}"]
        lines += self._note_line(history.note)
        for action, observation, note in history.steps:
            lines += [f"Action: {action}", f"Observation: {marked(observation)}", *self._note_line(note)]
        return "\n".join(lines)

    def _note_line(self, note: str) -> list[str]:
        return [f"{self.label}: {note}"] if self.label and note else []

    def chat(self, history: History, line: str) -> Chat:
        """Prompts the model to continue the transcript after the beginning of the next line, e.g. "Action:"."""
        examples = "\n\n".join(f"An example:\n{self.text(example)}" for example in self.examples)
        text = f"{self.instructions}\n\n{examples}" if examples else self.instructions
        return Chat.of(text, continued=f"{self.text(history)}\n{line}", history=history, line=line)

    def trim(self, history: History, reserve: int) -> Trimmed:
        """Drops the oldest steps, two at a time, until they are `last` and, with `reserve` more tokens, fit the room.

        Raises:
          ValueError: even the last observation does not fit.
        """
        excess = len(history.steps) - self.last
        if self.last and excess > 0:
            history = _without(history, -(-excess // DROP) * DROP)
        trimmed = self._cut(history, "", reserve)
        if self.room and not trimmed.history.steps and (size := self._size(trimmed.history, "")) + reserve > self.room:
            lower = "--line_tokens, so that these are at most {}"
            raise ValueError(
                f"{self.contents} take {size} tokens, and {reserve} more are needed; the model's context holds "
                f"{self.room}. {room_advice(self, trimmed.history, size, self.room, reserve, lower)}"
            )
        return trimmed

    @property
    def contents(self) -> str:
        """What a prompt without steps holds, in words."""
        return f"instructions,{' examples,' if self.examples else ''} goal and one observation"

    def fit(self, chat: Chat, reserve: int) -> Trimmed:
        """Trims the history of a chat that ends in a line of this dialogue; see `trim`.

        A history without steps stays as it is.
        """
        return self._cut(chat.context["history"], chat.context["line"], reserve)

    def _cut(self, history: History, line: str, reserve: int) -> Trimmed:
        dropped = 0
        while self.room and history.steps and self._size(history, line) + reserve > self.room:
            dropped += len(history.steps[:DROP])
            history = _without(history, DROP)
        return Trimmed(history, dropped)

    def _size(self, history: History, line: str) -> int:
        return sum(self.count(message["content"]) for message in self.chat(history, line).messages)


def room_advice(dialogue: Dialogue, history: History, size: int, room: int, reserve: int, lower: str, lines=1) -> str:
    """Advises what would make a prompt without steps fit.

    Args:
      size: its tokens. room: of the context. reserve: that so many lines need.
      lower: the option for the length of lines, and "{}" where the tokens stand that are left for each.
    """
    examples = size - dialogue._size(history, "") + dataclasses.replace(dialogue, examples=())._size(history, "")
    for option, used in (("", size), ("--examples 0", examples)) if dialogue.examples else (("", size),):
        if option and used + reserve <= room:
            return f"Give {option}"
        if (remaining := (room - used) // lines) >= _SHORTEST:
            return f"{f'Give {option} and lower' if option else 'Lower'} {lower.format(remaining)}"
    longer = "--context_tokens of" if dialogue.is_set else "a model whose context holds"
    return f"Give {longer} {size + reserve} tokens or more"


@functools.lru_cache(1 << 14)  # every prompt shows the lines of all steps before it again
def marked(text: str) -> str:
    """Quotes lines of a game's text that could be taken for the model's ("> Action: down").

    They read like a transcript's, or like the beginning of a message.
    """
    first, *rest = text.splitlines() or [""]
    if not any(map(_TURN.match, rest)):
        return text
    return "\n".join([first, *(f"> {line}" if _TURN.match(line) else line for line in rest)])


def _without(history: History, steps: int) -> History:
    """Drops the oldest steps, so that the history begins with a later observation."""
    dropped, rest = history.steps[:steps], history.steps[steps:]
    _, observation, note = dropped[-1]
    opening, past = history.opening if history.past else history.observation, (*history.past, *dropped)
    return dataclasses.replace(history, observation=observation, steps=rest, note=note, past=past, opening=opening)
