"""Replies read while they are written: thought, answer, calls of tools, and where a stop string ends them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from nlrl_jax.lm.call_forms import ToolCall
from nlrl_jax.lm.thoughts import written_thought_end
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.tool_calls import read_calls
from nlrl_jax.run.serving.prompts import Prompt

_MAYBE_MARK = re.compile(r"\s*(?:[<\[][^>\]]{0,24})?\Z")  # what may become the mark that begins a thought
_BROKEN = "\ufffd"  # for a letter that lacks some of its bytes


class ReplyText(NamedTuple):
    """What a reply says. thought: without its marks. content: the answer, without its calls. calls: of tools."""

    thought: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()


class ReplyReader:
    """Reads the tokens that were written after a prompt; `stop` are the strings that end its answer."""

    def __init__(self, tokenizer: Tokenizer, prompt: Prompt, stop: Sequence[str] = ()):
        self.tokenizer, self.prompt, self.stop = tokenizer, prompt, tuple(stop)

    def shows(self, token: int) -> bool:
        """Whether a token is a part of what the reply says: no end token, and no other one that decoding leaves out."""
        if token in self.tokenizer.eos_ids or token >= self.tokenizer.vocab_size:
            return False
        _, offsets = self.tokenizer.token_bytes
        return self.prompt.calls is not None or bool(offsets[token] < offsets[token + 1])

    def stopped_at(self, tokens: Sequence[int], new: int) -> int | None:
        """How many tokens there are up to the one that completes a stop string; None where there is none.

        new: how many of the tokens have come since the last look.
        """
        if not self.stop or self._stop_place(self._split(tokens)[1]) is None:
            return None
        first = len(tokens) - new + 1
        return next(
            n for n in range(first, len(tokens) + 1) if self._stop_place(self._split(tokens[:n])[1]) is not None
        )

    def read(self, tokens: Sequence[int], is_final: bool) -> ReplyText:
        """What the tokens say. While more may come, only as much of it as no further token changes."""
        thought, content = self._split(tokens)
        place = self._stop_place(content)
        if place is not None:
            content = content[:place]
        elif not is_final:
            thought = _without_beginning(thought.rstrip(_BROKEN), (self._mark(tokens)[1],))
            content = self._settled(content.rstrip(_BROKEN))
        if self.prompt.calls is None:
            return ReplyText(thought, content)
        # Where a call begins, and whether it can be read, shows at its end.
        return self._with_calls(thought, content) if is_final else ReplyText(thought)

    def _split(self, tokens: Sequence[int]) -> tuple[str, str]:
        """(thought, answer) with nothing left out yet but the end token and the marks of the thought."""
        tokens = [token for token in tokens if token not in self.tokenizer.eos_ids]
        opening, end = self._mark(tokens)
        if not end:
            return "", self._decode(tokens)
        mark = self.tokenizer.backend.token_to_id(end)
        if mark in tokens:  # decoding may leave it out
            place = tokens.index(mark)
            thought, answer = self._decode(tokens[:place]), self._decode(tokens[place + 1 :])
        else:
            thought, _, answer = self._decode(tokens).partition(end)
        return thought.lstrip().removeprefix(opening).strip("\n"), answer.lstrip("\n")

    def _mark(self, tokens: Sequence[int]) -> tuple[str, str]:
        """The marks around the thought of a reply: the first is empty if the prompt has it, both if there is none."""
        if self.prompt.thought_end or self.prompt.continues:
            return "", self.prompt.thought_end
        # A few tokens are enough to spell the mark with which a reply may begin a thought itself.
        beginning = self.tokenizer.decode(tokens[:16], skip_special_tokens=False)
        end = written_thought_end(beginning)
        return end and end.replace("/", "", 1).replace("close", "open"), end

    def _decode(self, tokens: Sequence[int]) -> str:
        # The marks of calls are special tokens in some vocabularies.
        skips = self.prompt.calls is None
        return self.tokenizer.decode(tokens, skip_special_tokens=skips, continues=self.prompt.continues)

    def _stop_place(self, content: str) -> int | None:
        return min((place for place in map(content.find, self.stop) if place >= 0), default=None)

    def _settled(self, content: str) -> str:
        """The content without an end that may become a stop string or the mark of a thought."""
        if not self.prompt.continues and not self.prompt.thought_end and _MAYBE_MARK.match(content):
            return ""
        return _without_beginning(content, self.stop)

    def _with_calls(self, thought: str, content: str) -> ReplyText:
        # A call that fits no schema is the caller's to answer; one that cannot be read at all is a text.
        for tools in (self.prompt.tools, ()):
            parsed = read_calls(self.prompt.calls, content, tools)
            if parsed.calls and not parsed.errors:
                calls = parsed.calls if self.prompt.is_parallel else parsed.calls[:1]
                return ReplyText(thought, parsed.text, calls)
        return ReplyText(thought, content)


def _without_beginning(text: str, marks: Sequence[str]) -> str:
    """A text without an end that may become one of the marks."""
    longest = 0
    for mark in marks:
        lengths = (n for n in range(min(len(mark), len(text)), 0, -1) if text.endswith(mark[:n]))
        longest = max(longest, next(lengths, 0))
    return text[: len(text) - longest]
