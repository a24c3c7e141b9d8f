"""Episodes of a language model that acts in growing transcripts: the tokens that it reads and writes, as they are.

    played = play(Player(model, dialogue, sampling), game, tasks, seed=0)

A transcript is what `roles.dialogues` shows, but it grows by tokens: after a prompt come the tokens that the model has
written, then those of the next observation, tokenised by themselves. What the model wrote is never tokenised again, so
the tokens to learn are those that were sampled, after exactly the tokens that were read.

    Observation: You see a wall 2 steps right
    Action: turn left                                 one reply, one line
    Observation: ...

With a dialogue whose label is "Thought", a line of thought, a reply of its own, comes before each action.

Two things are not part of the next prompt: an end token (a row to learn from begins anew after it), and the oldest
steps where the context is full; these leave as in `Dialogue.trim`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from nlrl_jax.roles.actions import read_action
from nlrl_jax.roles.dialogues import DROP, Dialogue, History, marked, room_advice
from nlrl_jax.rollouts import host_games
from nlrl_jax.types import HostGame, Outcome, Sampling, Written

THOUGHT = "Thought"  # the label of dialogues in which a thought comes before each action


class Writer(Protocol):
    """A local model that continues tokens, `backends.local.LocalModel`."""

    tokenizer: Any

    def write(
        self, prompts: Sequence[tuple[int, ...]], sampling: Sampling, role: str, seed: int, stop: Sequence[str]
    ) -> list[Written]: ...


class PromptedReply(NamedTuple):
    """A line that the model wrote: prompt, the tokens that it read, all of them; written, what it wrote after them."""

    prompt: tuple[int, ...]
    written: Written


class TranscriptTurn(NamedTuple):
    """One step of an episode.

    observation: what the model acted on. replies: a thought, if there is one, and the action. action: as the game got
    it. reward: the game's. invalid: the game could not carry the action out, or there is none in the reply; an action
    of the game that changed nothing (`Outcome.idle`) is not.
    """

    observation: str
    replies: tuple[PromptedReply, ...]
    action: str
    reward: float
    invalid: bool


class PlayedTranscript(NamedTuple):
    """An episode: as `host_games.play` returns it, and its turns with their tokens.

    forfeit: the turns that were left when it was given up as lost, else 0.
    """

    episode: host_games.Episode
    turns: tuple[TranscriptTurn, ...]
    forfeit: int = 0

    def begins(self, tokens: tuple[int, ...]) -> bool:
        """Whether all its prompts begin with these tokens and go on."""
        prompts = [reply.prompt for turn in self.turns for reply in turn.replies]
        return all(prompt[: len(tokens)] == tokens and len(prompt) > len(tokens) for prompt in prompts)


@dataclasses.dataclass(frozen=True, eq=False)
class TranscriptPlayer:
    """A language model with all that turns its text into actions.

    Attributes:
      dialogue: its instructions and examples; with the label `THOUGHT` the model thinks before it acts.
      sampling: of each line; temperature 0 is greedy.
      room: tokens of the model's context.
    """

    model: Writer
    dialogue: Dialogue
    sampling: Sampling
    room: int

    def __post_init__(self):
        if self.dialogue.label not in ("", THOUGHT):
            raise ValueError(f"the dialogue's label is {self.dialogue.label!r}; a player's is {THOUGHT!r} or empty")

    @property
    def reserve(self) -> int:
        """Tokens that a turn adds to its prompt."""
        lines = 2 if self.dialogue.label else 1
        return lines * self.sampling.max_tokens + (len(self.encode("\nAction:", True)) if self.dialogue.label else 0)

    @functools.cached_property
    def encode(self) -> Callable[[str, bool], tuple[int, ...]]:
        """(text, whether it continues another one) -> its tokens; each text is tokenised once."""
        return functools.lru_cache(1 << 14)(lambda text, continues: tuple(self.model.tokenizer.encode(text, continues)))

    @property
    def _begin(self) -> str:
        """What stands before the first line of a turn."""
        return f"{self.dialogue.label or 'Action'}:"

    def head(self, history: History, dropped: int = 0) -> tuple[int, ...]:
        """The prompt of a history without its steps: instructions, goal, one observation and a line's beginning."""
        return self._head(history.goal, _observation(history, dropped))

    @functools.cached_property
    def _head(self) -> Callable[[str, str], tuple[int, ...]]:
        """(goal, observation) -> `head`; each is rendered once."""

        @functools.lru_cache(1 << 12)
        def head(goal: str, observation: str) -> tuple[int, ...]:
            chat = self.dialogue.chat(History(goal, observation), self._begin)
            return self.encode(self.model.tokenizer.render_chat(chat.messages), False)

        return head

    def prompt(self, history: History, steps: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """The tokens of a transcript, without its oldest steps where they do not fit.

        Args:
          steps: the tokens of each step of the history, from what the model wrote to the next line's beginning.

        Raises:
          ValueError: even the last observation does not fit.
        """
        n, last = len(steps), self.dialogue.last
        # Whole groups of `DROP` steps go at a time, so that consecutive prompts share their beginnings.
        dropped = -(-(n - last) // DROP) * DROP if 0 < last < n else 0
        while True:
            dropped = min(dropped, n)
            head, recent = self.head(history, dropped), steps[dropped:]
            size = len(head) + sum(map(len, recent))
            if size + self.reserve <= self.room:
                return head + tuple(token for step in recent for token in step)
            if dropped == n:
                raise ValueError(
                    f"{self.dialogue.contents} take {size} tokens, and a turn up to {self.reserve} more; the model's "
                    f"context holds {self.room}. {self._advice(history, size)}"
                )
            dropped += DROP

    def _advice(self, history: History, size: int) -> str:
        last = History(history.goal, _observation(history, len(history.steps)))
        lines = 2 if self.dialogue.label else 1
        new_tokens = lines * self.sampling.max_tokens
        size += self.reserve - new_tokens
        return room_advice(self.dialogue, last, size, self.room, new_tokens, "--max_tokens to {}", lines)

    def beginning(self) -> tuple[int, ...]:
        """The tokens that prompts of all tasks begin with: instructions and examples."""
        # Two goals that share no letter: up to where the heads differ they do not depend on the task.
        first, second = (self.head(History(goal, "")) for goal in ("a", "Z"))
        same = next(i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1])
        return first[: max(same - 2, 0)]  # a goal may join the tokens right before it

    def line(self, reply: Written) -> str:
        """The first line of what was written, without blanks around it."""
        return self._text(reply).partition("\n")[0].strip()

    def after(self, reply: Written, text: str) -> tuple[int, ...]:
        """What a transcript continues with: the line that was written, its newline, and a text."""
        end_ids = self.model.tokenizer.eos_ids
        tokens = reply.tokens[:-1] if reply.tokens and reply.tokens[-1] in end_ids else reply.tokens
        text = self.model.tokenizer.as_content(text)
        return tokens + self.encode(text if "\n" in self._text(reply) else f"\n{text}", True)

    def _text(self, reply: Written) -> str:
        end_ids = self.model.tokenizer.eos_ids
        return self.model.tokenizer.decode([token for token in reply.tokens if token not in end_ids])


@dataclasses.dataclass
class _Ledger:
    """An episode so far: the tokens of its steps, of each from what the model wrote to the next line's beginning; its
    replies and whether they were invalid, by turn.

    unread: there is no action in the last reply. in_vain: actions in a row that were invalid or changed nothing.
    forfeit: turns that were left when it was given up.
    """

    steps: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    replies: list[tuple[PromptedReply, ...]] = dataclasses.field(default_factory=list)
    invalid: list[bool] = dataclasses.field(default_factory=list)
    unread: bool = False
    in_vain: int = 0
    forfeit: int = 0


def play(
    player: TranscriptPlayer,
    game: HostGame,
    tasks: Sequence[tuple[str, int]],
    seed: int,
    give_up: int = 0,
    pictured: int | None = None,
) -> list[PlayedTranscript]:
    """One episode per task, in lockstep: each turn is one call of the model for all episodes that still run.

    An episode breaks off where the model's context cannot hold the next observation.

    Args:
      game: with as many `max_steps` as an episode is to have.
      tasks: several episodes of one task are listed as often.
      seed: of all that is drawn. The same arguments give the same tokens.
      give_up: an episode ends after so many actions in a row that were invalid or changed nothing; 0: never.
      pictured: see `host_games.play`.

    Raises:
      ValueError: the context cannot hold a first observation.
    """
    ledgers = [_Ledger() for _ in tasks]
    seeds = np.random.default_rng(seed)

    def write(prompts: list[tuple[int, ...]], role: str) -> list[PromptedReply]:
        outputs = player.model.write(prompts, player.sampling, role, int(seeds.integers(2**32)), ("\n",))
        return [PromptedReply(*pair) for pair in zip(prompts, outputs, strict=True)]

    def decide(histories: Sequence[History], t: int) -> host_games.StepDecisions:
        running = [ledgers[history.task[2]] for history in histories]
        for ledger, history in zip(running, histories, strict=True):
            if t:
                text = f"Observation: {marked(_observation(history, t))}\n{player._begin}"
                thought, action = _thought(player, ledger.replies[-1]), ledger.replies[-1][-1].written
                # The model's tokens are taken as they were drawn, never tokenised again from their text.
                ledger.steps.append(thought + player.after(action, text))
        # 1. A thought first, if the dialogue has them; 2. the action, after the thought's own tokens.
        prompts = [player.prompt(history, ledger.steps) for ledger, history in zip(running, histories, strict=True)]
        turn_replies = [()] * len(prompts)
        if player.dialogue.label:
            turn_replies = [(reply,) for reply in write(prompts, "thought")]
            prompts = [reply.prompt + player.after(reply.written, "Action:") for (reply,) in turn_replies]
        turn_replies = [(*before, reply) for before, reply in zip(turn_replies, write(prompts, "action"), strict=True)]
        lines = [player.line(game_replies[-1].written) for game_replies in turn_replies]
        parsed = [read_action(line, game.actions) for line in lines]
        for ledger, game_replies, (_, problem) in zip(running, turn_replies, parsed, strict=True):
            ledger.replies.append(game_replies)
            ledger.unread = bool(problem)
        # The game answers to what was written even where no action can be read in it.
        actions = [action or line or "nothing" for (action, _), line in zip(parsed, lines, strict=True)]
        notes = [player.line(game_replies[0].written) if len(game_replies) > 1 else "" for game_replies in turn_replies]
        thinking = [{"problem": problem} for _, problem in parsed]
        return host_games.StepDecisions(actions, notes, [[]] * len(turn_replies), thinking)

    def rule(history: History, outcome: Outcome) -> Outcome:
        ledger, t = ledgers[history.task[2]], len(history.steps) + 1
        # An action of the game that changed nothing (idle) counts towards giving up, but is not fined.
        ledger.in_vain = ledger.in_vain + 1 if ledger.unread or not outcome.valid else 0
        ledger.invalid.append(ledger.unread or not (outcome.valid or outcome.idle))
        if outcome.done or t == game.max_steps:
            return outcome
        # Turns that are given up count as invalid actions, so that giving up early does not pay.
        if give_up and ledger.in_vain >= give_up:
            ledger.forfeit = game.max_steps - t
            return outcome._replace(done=True)
        try:
            player.prompt(History(history.goal, outcome.observation), ())
        except ValueError as error:
            return outcome._replace(done=True, error=str(error))
        return outcome

    # Tasks carry their number, by which an episode's ledger is found from its history.
    numbered = dataclasses.replace(game, reset=lambda tasks: game.reset([task[:2] for task in tasks]))
    named = [(*task, i) for i, task in enumerate(tasks)]
    episodes = host_games.play(numbered, decide, named, rule=rule, pictured=pictured)
    return [_played(episode, ledger) for episode, ledger in zip(episodes, ledgers, strict=True)]


def _thought(player: TranscriptPlayer, replies: tuple[PromptedReply, ...]) -> tuple[int, ...]:
    """The tokens of a turn before its action: a thought and the beginning of the next line."""
    return player.after(replies[0].written, "Action:") if len(replies) > 1 else ()


def _observation(history: History, number: int) -> str:
    """The observation after so many steps."""
    return history.steps[number - 1].observation if number else history.observation


def _played(episode: host_games.Episode, ledger: _Ledger) -> PlayedTranscript:
    history, rewards = episode.history, episode.rewards
    turns = tuple(
        TranscriptTurn(_observation(history, t), replies, history.steps[t].action, rewards[t], ledger.invalid[t])
        for t, replies in enumerate(ledger.replies)
    )
    return PlayedTranscript(dataclasses.replace(episode, task=episode.task[:2]), turns, ledger.forfeit)
