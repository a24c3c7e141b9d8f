"""The lines of an episode as training examples: each after the prompt that would ask a model for it.

    lines = [line for line in lines_of(history) if line.kind in (OBSERVATION, REFLECTION)]
    examples = pairs(dialogue, lines)                # one example per line
    examples = pairs(dialogue, lines, joined=True)   # one per episode: the same tokens are learned in one pass

A line is learned with its newline, which ends it. Where a prompt drops its oldest steps because the dialogue's room is
full, a joined example ends and another begins; so each line is learned once, after what the model would read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nlrl_jax.roles.dialogues import Dialogue, History
from nlrl_jax.types import Chat, Piece

ACTION, OBSERVATION, REFLECTION = "action", "observation", "reflection"


class TrainingLine(NamedTuple):
    """A line that a model learns to write.

    kind: one of the three above. history: before it. opening: what stands before the model's text, e.g. "Critic:".
    text: the model's. weight: of its tokens in the loss.
    """

    kind: str
    history: History
    opening: str
    text: str
    weight: float = 1.0

    @property
    def reply(self) -> str:
        """What the model writes, its newline included."""
        return f" {self.text}\n"


def lines_of(history: History) -> Iterator[TrainingLine]:
    """Yields the action, the observation and, where there is one, the reflection of each step."""
    for t, step in enumerate(history.steps):
        past = dataclasses.replace(history, steps=history.steps[:t])
        yield TrainingLine(ACTION, past, "Action:", step.action)
        yield TrainingLine(OBSERVATION, past, f"Action: {step.action}\nObservation:", step.observation)
        if step.note:
            yield TrainingLine(REFLECTION, past.then(step._replace(note="")), "Critic:", step.note)


def prompt(dialogue: Dialogue, line: TrainingLine) -> Chat:
    """Makes the chat that asks for a line, trimmed so that the line has room."""
    reserve = dialogue.count(line.opening) + dialogue.count(line.reply)
    return dialogue.chat(dialogue.trim(line.history, reserve).history, line.opening)


def pairs(dialogue: Dialogue, lines: Iterable[TrainingLine], joined: bool = False) -> list[tuple[Chat, list[Piece]]]:
    """Turns lines into examples, in their order; see `algorithms.sft`.

    Args:
      joined: a line goes into the example of the line before it where its prompt continues that example.
    """
    examples, joined_text = [], None
    for line in lines:
        chat = prompt(dialogue, line)
        text = chat.messages[-1]["content"]
        if joined and joined_text is not None and text.startswith(joined_text):
            examples[-1][1].append(Piece(text.removeprefix(joined_text), 0.0))
        else:
            examples.append((chat, []))
        examples[-1][1].append(Piece(line.reply, line.weight))
        joined_text = text + line.reply
    return examples
