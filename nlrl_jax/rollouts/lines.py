"""A player whose episodes are lines of one open message, as `roles.dialogues` writes them; each reply is one line.

    Observation: You see a wall 2 steps right
    Action: turn left                                 one reply, one line
    Observation: ...

With a dialogue whose label is "Thought", a line of thought, a reply of its own, comes before each action. An end token
is learned, but is not part of the next prompt: a row to learn from begins anew after it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from nlrl_jax.roles.actions import read_action
from nlrl_jax.roles.dialogues import Dialogue, History, marked, room_advice
from nlrl_jax.rollouts.transcripts import Move, PromptedReply, TokenPlayer, Tokens, Write, Writer, observation_after
from nlrl_jax.types import HostGame, Sampling, Written

THOUGHT = "Thought"  # the label of dialogues in which a thought comes before each action


@dataclasses.dataclass(frozen=True, eq=False)
class LinePlayer(TokenPlayer):
    """A language model that acts by lines.

    Attributes:
      dialogue: its instructions and examples; with the label `THOUGHT` the model thinks before it acts.
      sampling: of each line. room: tokens of the model's context.
    """

    model: Writer
    dialogue: Dialogue
    sampling: Sampling
    room: int

    def __post_init__(self):
        if self.dialogue.label not in ("", THOUGHT):
            raise ValueError(f"the dialogue's label is {self.dialogue.label!r}; a player's is {THOUGHT!r} or empty")

    @property
    def last(self) -> int:
        """Maximum steps that a prompt shows, see `TokenPlayer`."""
        return self.dialogue.last

    @property
    def lines(self) -> int:
        """Lines that the model writes in a turn."""
        return 2 if self.dialogue.label else 1

    @property
    def turn_tokens(self) -> int:
        """See `TokenPlayer.turn_tokens`."""
        return self.lines * self.sampling.max_tokens

    @property
    def reserve(self) -> int:
        """See `TokenPlayer.reserve`; the label of the action stands behind a thought."""
        return self.turn_tokens + (len(self.encode("\nAction:", True)) if self.dialogue.label else 0)

    @property
    def _begin(self) -> str:
        """What stands before the first line of a turn."""
        return f"{self.dialogue.label or 'Action'}:"

    def head(self, history: History, dropped: int = 0) -> Tokens:
        """The prompt of a history without its steps: instructions, goal, one observation and a line's beginning."""
        return self._head(history.goal, observation_after(history, dropped))

    @functools.cached_property
    def _head(self) -> Callable[[str, str], Tokens]:
        """(goal, observation) -> `head`; each is rendered once."""
        dialogue, begin, encode, tokenizer = self.dialogue, self._begin, self.encode, self.model.tokenizer

        @functools.lru_cache(1 << 12)
        def head(goal: str, observation: str) -> Tokens:
            chat = dialogue.chat(History(goal, observation), begin)
            return encode(tokenizer.render_chat(chat.messages), False)

        return head

    def step(self, move: Move, observation: str) -> Tokens:
        """See `TokenPlayer.step`."""
        replies = move.replies
        thought = self.after(replies[0].written, "Action:") if len(replies) > 1 else ()
        return thought + self.after(replies[-1].written, f"Observation: {marked(observation)}\n{self._begin}")

    def act(self, game: HostGame, prompts: list[Tokens], write: Write) -> list[Move]:
        """See `TokenPlayer.act`."""
        # 1. A thought first, if the dialogue has them; 2. the action, after the thought's own tokens.
        turn_replies = [()] * len(prompts)
        if self.dialogue.label:
            turn_replies = [(reply,) for reply in write(prompts, "thought", self.sampling, "\n")]
            prompts = [reply.prompt + self.after(reply.written, "Action:") for (reply,) in turn_replies]
        last_replies = write(prompts, "action", self.sampling, "\n")
        return [self._move(game, (*before, last)) for before, last in zip(turn_replies, last_replies, strict=True)]

    def _move(self, game: HostGame, replies: tuple[PromptedReply, ...]) -> Move:
        line = self.line(replies[-1].written)
        action, problem = read_action(line, game.actions)
        note = self.line(replies[0].written) if len(replies) > 1 else ""
        thought_tokens = sum(len(reply.written.tokens) for reply in replies[:-1])
        # The game answers to what was written even where no action can be read in it.
        return Move(replies, action or line or "nothing", bool(problem), problem, note, thought_tokens)

    def refusal(self, history: History, size: int) -> str:
        """See `TokenPlayer.refusal`."""
        last = History(history.goal, observation_after(history, len(history.steps)))
        new_tokens, between = self.turn_tokens, self.reserve - self.turn_tokens
        advice = room_advice(
            self.dialogue, last, size + between, self.room, new_tokens, "--max_tokens to {}", self.lines
        )
        return (
            f"{self.dialogue.contents} take {size} tokens, and a turn up to {self.reserve} more; the model's "
            f"context holds {self.room}. {advice}"
        )

    def line(self, reply: Written) -> str:
        """The first line of what was written, without blanks around it."""
        return self._text(reply).partition("\n")[0].strip()

    def after(self, reply: Written, text: str) -> Tokens:
        """What a transcript continues with: the line that was written, its newline, and a text."""
        end_ids = self.model.tokenizer.eos_ids
        tokens = reply.tokens[:-1] if reply.tokens and reply.tokens[-1] in end_ids else reply.tokens
        text = self.model.tokenizer.as_content(text)
        return tokens + self.encode(text if "\n" in self._text(reply) else f"\n{text}", True)

    def _text(self, reply: Written) -> str:
        end_ids = self.model.tokenizer.eos_ids
        return self.model.tokenizer.decode([token for token in reply.tokens if token not in end_ids])
