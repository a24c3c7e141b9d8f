r"""A player whose episodes are chats in the model's own template: observations are messages, replies are free text.

    system      rules                                             `opening`
    user        Goal: guess the number                               "
    assistant   It could be 5.\nAction: 5<end of turn>            sampled, up to the end token or `max_tokens`
    user        Higher.                                           `between`
    assistant   ...

A reply may begin with a thought. One that is as long as it may be is cut there, its closing mark is written for the
model, and the reply goes on with the answer; the mark is read, but not learned. Where the template cannot append turns
to what was sampled (`ConversationForm.way`), each prompt is rendered anew and becomes a row of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence

from nlrl_jax.lm.conversation import ConversationForm, ToolResult
from nlrl_jax.lm.conversation_plan import FRESH
from nlrl_jax.lm.turns import assistant, tool_reply
from nlrl_jax.roles.dialogues import History
from nlrl_jax.roles.json_reply import read_json
from nlrl_jax.roles.messages import first_message, read_reply, shortened_message
from nlrl_jax.rollouts.transcripts import Move, PromptedReply, TokenPlayer, Tokens, Write, Writer, observation_after
from nlrl_jax.types import HostGame, Sampling, Written

_NO_TOOL = "environment"  # says why a call cannot be read
_ONE_CALL = "Not carried out: one call a turn."
_SHORTEST = 8  # tokens of a reply, below which shorter ones are no advice


@dataclasses.dataclass(frozen=True, eq=False)
class ChatPlayer(TokenPlayer):
    """A language model that acts by messages.

    Attributes:
      form: how its template writes conversations. system: their system text.
      sampling: of each reply without its thought. room: tokens of the model's context.
      think_tokens: of a thought at most, after which it is closed; 0: thoughts count towards `sampling.max_tokens`.
      last: maximum turns that a prompt shows; 0 is no limit.
    """

    model: Writer
    form: ConversationForm
    system: str
    sampling: Sampling
    room: int
    think_tokens: int = 0
    last: int = 0

    @property
    def turn_tokens(self) -> int:
        """See `TokenPlayer.turn_tokens`."""
        return self.think_tokens + self.sampling.max_tokens

    @property
    def reserve(self) -> int:
        """See `TokenPlayer.reserve`."""
        return self.turn_tokens + (len(self.form.thought_close) if self.think_tokens else 0)

    def head(self, history: History, dropped: int = 0) -> Tokens:
        """See `TokenPlayer.head`."""
        return self._opening(self._first(history, dropped))

    def _first(self, history: History, dropped: int) -> str:
        if not dropped:
            return first_message(history.goal, history.observation)
        return shortened_message(history.goal, history.observation, dropped, observation_after(history, dropped))

    @functools.cached_property
    def _opening(self) -> Callable[[str], Tokens]:
        """First user message -> the tokens up to the first reply; each is rendered once."""
        return functools.lru_cache(1 << 12)(functools.partial(self.form.opening, self.system))

    def unlike_tasks(self) -> tuple[History, History]:
        """See `TokenPlayer.unlike_tasks`."""
        return History("", "a"), History("", "Z")

    def step(self, move: Move, observation: str):
        """See `TokenPlayer.step`; messages where prompts are rendered anew."""
        tokens = _turn_tokens(move.replies)
        without_end = self._without_end(tokens)
        results = self._results(move, observation)
        # Rendered anew, a turn is its two messages; else it is the sampled tokens and what the template puts between.
        if self.form.way == FRESH:
            text = self.model.tokenizer.decode(without_end, skip_special_tokens=False)
            messages = [tool_reply(result.text, result.name, n) for n, result in enumerate(results)]
            return assistant(text), *(messages or [self.form.plan.form.observation(observation)])
        ended = len(without_end) < len(tokens)
        between = self.form.after_calls(results, ended) if results else self.form.between(observation, ended)
        return tokens + between

    def _results(self, move: Move, observation: str) -> list[ToolResult]:
        """What the tools say that a reply has called; none where it has called none."""
        if self.form.tools and move.problem:
            return [ToolResult(_NO_TOOL, move.problem)]
        texts = (observation, *[_ONE_CALL] * len(move.tools[1:]))
        return [ToolResult(*result) for result in zip(move.tools, texts, strict=False)]

    def tokens(self, history: History, steps: Sequence, dropped: int) -> Tokens:
        """See `TokenPlayer.tokens`."""
        if self.form.way != FRESH:
            return super().tokens(history, steps, dropped)
        system = [{"role": "system", "content": self.system}] if self.system else []
        user = {"role": "user", "content": self._first(history, dropped)}
        return self.form.rendered([*system, user, *(message for step in steps[dropped:] for message in step)])

    def act(self, game: HostGame, prompts: list[Tokens], write: Write) -> list[Move]:
        """See `TokenPlayer.act`."""
        # 1. Thoughts and answers in one go, as long as both may be together: few thoughts are too long, so that most
        #    turns take one call of the model. A sample's beginning is a sample, so what is too long can be cut.
        whole = dataclasses.replace(self.sampling, max_tokens=self.turn_tokens)
        replies = write(prompts, "reply", whole)
        thoughts = [self.form.thought_length(reply.written.tokens) for reply in replies]
        turns = [(self._shortened(*pair),) for pair in zip(replies, thoughts, strict=True)]
        # 2. Thoughts that were too long are closed; their answers come in a second go.
        too_long = [i for i, length in enumerate(thoughts) if 0 < self.think_tokens < length]
        closed = [turns[i][0].prompt + turns[i][0].written.tokens + self.form.thought_close for i in too_long]
        for i, answer in zip(too_long, write(closed, "answer", self.sampling) if closed else (), strict=True):
            turns[i] = (*turns[i], answer)
        return [self._move(game, *pair) for pair in zip(turns, thoughts, strict=True)]

    def _shortened(self, reply: PromptedReply, thought: int) -> PromptedReply:
        """A reply cut where its thought, or what follows the thought, is longer than it may be."""
        if not self.think_tokens:
            return reply
        tokens, log_probs, ended = reply.written
        limit = self.think_tokens if thought > self.think_tokens else thought + self.sampling.max_tokens
        if len(tokens) <= limit:
            return reply
        return reply._replace(written=Written(tokens[:limit], log_probs[:limit], False))

    def _move(self, game: HostGame, replies: tuple[PromptedReply, ...], thought: int) -> Move:
        # A closed thought is the whole first reply; its closing mark stands in the second one's prompt.
        is_closed = len(replies) > 1
        thought = len(replies[0].written.tokens) if is_closed else thought
        answer = replies[-1].written.tokens[0 if is_closed else thought :]
        action, unread, problem, tools = self._read(game, self._without_end(answer))
        return Move(replies, action, unread, problem, thought_tokens=thought, is_closed=is_closed, tools=tools)

    def _read(self, game: HostGame, answer: Tokens) -> tuple[str, bool, str, tuple[str, ...]]:
        """Reads an answer: the action, and of a `Move` the fields unread, problem and tools."""
        text = self.form.answer_text(answer)
        if not game.tools:
            action, problem = read_reply(text, game)
            return action, bool(problem), problem, ()
        reading = self.form.read_calls(answer)
        if reading.calls:
            call = reading.calls[0]
            names = tuple(call.name for call in reading.calls)
            return json.dumps({"name": call.name, "arguments": call.arguments}), False, "", names
        if reading.errors:  # the game gets a call that it cannot read either, and makes no step; the model is told why
            return json.dumps({"error": reading.errors[0]}), True, reading.errors[0], ()
        # A call in another form than the template's may be one that the game reads. An answer in words is the model's
        # to give: no fault.
        action = game.read_action and game.read_action(text)
        return text.strip(), action is None, "", self._called(game, action)

    def _called(self, game: HostGame, action: str | None) -> tuple[str, ...]:
        """The tool that a call in another form names, where its result can be shown as a tool's: a template that
        renders each turn anew would look for the call that it answers."""
        if action is None or self.form.way == FRESH:
            return ()
        name = read_json(action).fields.get("name")
        return tuple(tool["function"]["name"] for tool in game.tools if tool["function"]["name"] == name)

    def _without_end(self, tokens: Tokens) -> Tokens:
        return tokens[:-1] if tokens and tokens[-1] in self.model.tokenizer.eos_ids else tokens

    def refusal(self, history: History, size: int) -> str:
        """See `TokenPlayer.refusal`."""
        remaining = self.room - size - (self.reserve - self.sampling.max_tokens)
        if remaining >= _SHORTEST:
            advice = f"Lower --max_tokens to {remaining}"
        elif self.think_tokens and remaining + self.think_tokens >= 2 * _SHORTEST:
            advice = "Lower --think_tokens and --max_tokens"
        else:
            advice = f"Give a model whose context holds {size + self.reserve} tokens or more"
        return (
            f"the system text, the first message and one observation take {size} tokens, and a turn up to "
            f"{self.reserve} more; the model's context holds {self.room}. {advice}"
        )


def _turn_tokens(replies: Sequence[PromptedReply]) -> Tokens:
    """All tokens of a turn behind its prompt, with a mark that closed a thought."""
    return (*replies[-1].prompt[len(replies[0].prompt) :], *replies[-1].written.tokens)
