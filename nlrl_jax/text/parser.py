"""The action parser psi and the format penalty Phi of MS-GRPO (paper: "Reward design" and appendix "Agents").

What the paper leaves open, and our choice:

  * Several actions in one reply are separated by `separator`. At most `max_actions` of them are
    executed; all further ones count together as one invalid action.
  * "Missing, unnecessary or incorrectly nested" tags are counted as below.
  * The -0.5 for an invalid action belongs to the environment's reward R, not to Phi, so it is not in
    `format_penalty`; `num_invalid` carries it.

The specification, which `reference_parse` writes down as plain Python and `compile_parser` computes under `jax.jit`:

  * A reply is the bytes of its tokens. Special tokens (the end of the reply among them) have none. A tag is a match of
    `</?[A-Za-z][A-Za-z0-9_]*>`, found from left to right without overlap.
  * Actions. The action text lies between the first `<action>` and the first `</action>` after it. Without such a pair
    there is no action and `num_invalid` is 1. The text is split at `separator`, each word is stripped of ASCII
    white space and compared with the action words and their other spellings. A word that is none of them (the empty
    word too) is an invalid action: its position holds -1.
  * Structure. A tag counts at most once, as the first of these that holds:
      - unnecessary: its name is not expected, or the same tag (opening and closing are different tags) came before;
      - incorrectly nested: an opening tag while another tag is open, or a closing tag that is not the open one's;
    and each expected opening or closing tag that never came counts as missing. "The open tag" is at most one: an
    opening tag that is not unnecessary becomes it (also when incorrectly nested: the tag that was open no longer is),
    a closing tag that matches it makes it none, and all other tags leave it as it is.
  * Extra text: some byte after the last `</action>` that is not ASCII white space. None without a `</action>`.
  * Length: linear in the number of generated tokens, from nothing at `length_penalty_start` to `penalty` at
    `length_penalty_end` and from there on. The token that ends the reply is counted.

`format_penalty` is minus `penalty` for each structure violation, minus `penalty` for extra text, minus the length
penalty.

The compiled parser is a byte automaton: one table finds tags, one finds words, and a loop carries their
states over the reply's bytes, 64 at a time, as many as there are. Nothing is truncated.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.text.automata import NUM_BYTES, WHITE_SPACE, tag_automaton, word_automaton

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_TAG = re.compile(rb"<(/?)([A-Za-z][A-Za-z0-9_]*)>")
_CHUNK = 64  # bytes a turn of the outer loop


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplyFormat:
    """What a well-formed reply looks like.

    Attributes:
      tags: names of the expected tags; the last is the action tag.
      actions: the action words; a word's position is the action id.
      separator: stands between the words of one reply; no white space (words are stripped).
      max_actions: how many words of one reply are executed.
      length_penalty_start, length_penalty_end: in tokens.
      penalty: the size of each penalty, positive.
      spellings: other spellings of action words -> action id; see `for_tokenizer`.
    """

    actions: tuple[str, ...]
    tags: tuple[str, ...] = ("observe", "think", "plan", "action")
    separator: str = "||"
    max_actions: int = 3
    length_penalty_start: int = 180
    length_penalty_end: int = 200
    penalty: float = 0.5
    spellings: tuple[tuple[bytes, int], ...] = ()

    def __post_init__(self):
        if not self.tags or len(set(self.tags)) != len(self.tags):
            raise ValueError(f"tags must be different names, the action tag last; got {self.tags}")
        if len(self.tags) > 31:
            raise ValueError(f"at most 31 tags; got {len(self.tags)}")
        for tag in self.tags:
            if not _NAME.fullmatch(tag):
                raise ValueError(f"tag {tag!r} is not a letter followed by letters, digits and underscores")
        if not self.separator or any(b in WHITE_SPACE for b in self.separator.encode()):
            raise ValueError(f"separator {self.separator!r}: give it without white space, words are stripped")
        if not self.actions or len(set(self.actions)) != len(self.actions):
            raise ValueError(f"actions must be different words; got {self.actions}")
        for word in self.actions:
            if not word or word.encode().strip() != word.encode() or self.separator in word:
                problem = f"is empty, begins or ends with white space, or holds {self.separator!r}"
                raise ValueError(f"action {word!r} {problem}")
        if self.max_actions < 1:
            raise ValueError(f"max_actions is {self.max_actions}; at least 1")
        if not 0 <= self.length_penalty_start < self.length_penalty_end:
            limits = (self.length_penalty_start, self.length_penalty_end)
            raise ValueError(f"the length penalty must start before it ends; got {limits}")
        if self.penalty < 0:
            raise ValueError(f"penalty is {self.penalty}; give its size, a positive number")

    @property
    def words(self) -> dict[bytes, int]:
        """Every spelling of every action word -> action id."""
        return {word.encode(): a for a, word in enumerate(self.actions)} | dict(self.spellings)

    def for_tokenizer(self, tokenizer: Tokenizer) -> ReplyFormat:
        """Adds the spellings in which the tokenizer's normalizer leaves the action words.

        A model whose tokenizer composes accents or lowers case has never seen a word in another form.

        Raises:
          ValueError: the normalizer makes two words one, deletes a word, or changes a tag or the separator.
        """
        words = self.words
        for word in self.actions:
            spelled = tokenizer.spelled(word).strip(WHITE_SPACE)
            action = words.setdefault(spelled, self.actions.index(word))
            if not spelled or self.actions[action] != word:
                same = f"as it does {self.actions[action]!r}" if spelled else "as nothing"
                raise ValueError(f"this tokenizer reads the action {word!r} {same}; give another word")
        for mark in (self.separator, *(f"<{tag}>" for tag in self.tags)):
            if (spelled := tokenizer.spelled(mark).strip(WHITE_SPACE)) != mark.encode():
                raise ValueError(f"this tokenizer reads {mark!r} as {spelled.decode(errors='replace')!r}; give that")
        return dataclasses.replace(self, spellings=tuple(words.items())[len(self.actions) :])


class ParsedReply(NamedTuple):
    """What one reply says and what is wrong with it.

    actions: int32 [max_actions], the words' positions; -1 where there is no word or an invalid one.
    num_actions: int32, valid words among them.
    num_invalid: int32, invalid actions (each costs the paper's -0.5 in the environment's reward).
    structure_violations: int32, missing, unnecessary and incorrectly nested tags.
    extra_text: bool, text after the last closing action tag.
    format_penalty: float32, Phi, zero or negative.
    """

    actions: jax.Array
    num_actions: jax.Array
    num_invalid: jax.Array
    structure_violations: jax.Array
    extra_text: jax.Array
    format_penalty: jax.Array


def reference_parse(text: bytes, num_tokens: int, reply_format: ReplyFormat) -> ParsedReply:
    """Parses one reply on the host; this is the specification.

    Args:
      text: the reply's bytes, without special tokens.
      num_tokens: number of generated tokens, the end of the reply included.
    """
    tags = [(match[1] == b"/", match[2].decode(), match) for match in _TAG.finditer(text)]

    structure_violations, open_tag, seen_tags = 0, None, set()
    for closing, name, _ in tags:
        if name not in reply_format.tags or (closing, name) in seen_tags:
            structure_violations += 1
            continue
        seen_tags.add((closing, name))
        if not closing:
            structure_violations += open_tag is not None
            open_tag = name
        elif open_tag == name:
            open_tag = None
        else:
            structure_violations += 1
    structure_violations += 2 * len(reply_format.tags) - len(seen_tags)

    action_tag = reply_format.tags[-1]
    starts = [match.end() for closing, name, match in tags if name == action_tag and not closing]
    closings = [match for closing, name, match in tags if name == action_tag and closing]
    ends_after = [match.start() for match in closings if starts and match.start() >= starts[0]]
    actions, num_invalid = [], 0
    if ends_after:
        words = text[starts[0] : ends_after[0]].split(reply_format.separator.encode())
        word_ids = reply_format.words
        actions = [word_ids.get(word.strip(), -1) for word in words[: reply_format.max_actions]]
        num_invalid = actions.count(-1) + (len(words) > reply_format.max_actions)
    else:
        num_invalid = 1
    num_actions = sum(action >= 0 for action in actions)
    actions += [-1] * (reply_format.max_actions - len(actions))

    extra_text = bool(closings) and text[closings[-1].end() :].strip() != b""
    return ParsedReply(
        np.array(actions, np.int32),
        np.int32(num_actions),
        np.int32(num_invalid),
        np.int32(structure_violations),
        np.bool_(extra_text),
        np.float32(_format_penalty(np, structure_violations, extra_text, num_tokens, reply_format)),
    )


def _format_penalty(xp, structure_violations, extra_text, num_tokens, reply_format: ReplyFormat):
    start, end = reply_format.length_penalty_start, reply_format.length_penalty_end
    too_long = xp.clip((xp.float32(num_tokens) - start) / (end - start), 0.0, 1.0)
    return 0.0 - reply_format.penalty * (structure_violations + xp.float32(extra_text) + too_long)


class _Carry(NamedTuple):
    """What the loop remembers from byte to byte. All int32 scalars but `actions`."""

    tag: jax.Array  # state of the tag automaton
    word: jax.Array  # state of the word automaton
    word_at_lt: jax.Array  # the same before the last '<': a closing tag is not part of the word
    phase: jax.Array  # 0 before the action text, 1 inside, 2 after
    seen_open: jax.Array  # bit k: opening tag k came
    seen_close: jax.Array
    open_tag: jax.Array  # -1: none
    violations: jax.Array
    extra: jax.Array  # 1: text since the last closing action tag
    num_words: jax.Array
    actions: jax.Array  # [max_actions]


def compile_parser(reply_format: ReplyFormat, tokenizer: Tokenizer) -> Callable[[jax.Array, jax.Array], ParsedReply]:
    """Compiles `parse(tokens, length) -> ParsedReply` for one reply, pure; use `jax.vmap` for batches.

    Action words count also as the tokenizer spells them; errors: see `ReplyFormat.for_tokenizer`.

    `tokens` is int32 [L], the generated tokens, right-padded; `length` counts those that were
    generated, the end of the reply included. Tokens after `length` are not read.
    """
    reply_format = reply_format.for_tokenizer(tokenizer)
    flat_bytes, offsets = tokenizer.token_bytes
    tags = tag_automaton(reply_format.tags)
    words = word_automaton(reply_format.words, reply_format.separator)
    num_tags, max_actions = len(reply_format.tags), reply_format.max_actions
    action_tag = num_tags - 1
    white = np.isin(np.arange(NUM_BYTES + 1), [*WHITE_SPACE, NUM_BYTES])

    def step(carry: _Carry, byte):
        """Reads one byte; `byte == NUM_BYTES` stands for no byte and changes nothing."""
        cell = carry.tag * (NUM_BYTES + 1) + byte
        tag, event = jnp.asarray(tags.next_state)[cell], jnp.asarray(tags.event)[cell]
        # event: 0 none, 1..K opening tag, K+1..2K closing tag, 2K+1 unknown tag
        opening = (event >= 1) & (event <= num_tags)
        closing = (event > num_tags) & (event <= 2 * num_tags)
        unknown = event > 2 * num_tags
        name = jnp.where(opening, event - 1, event - 1 - num_tags)
        bit = jnp.where(opening | closing, jnp.left_shift(1, jnp.clip(name, 0, 31)), 0)

        # A tag counts once: as unnecessary (unknown or repeated), or else as misnested.
        repeated = (jnp.where(opening, carry.seen_open, carry.seen_close) & bit) != 0
        first_open, first_close = opening & ~repeated, closing & ~repeated
        misnested = (first_open & (carry.open_tag >= 0)) | (first_close & (carry.open_tag != name))
        violations = carry.violations + (unknown | repeated | misnested)
        open_tag = jnp.where(first_open, name, jnp.where(first_close & (carry.open_tag == name), -1, carry.open_tag))

        # The action text lies between the first opening action tag and the next closing one.
        ends_action = closing & (name == action_tag)
        starts_text = (carry.phase == 0) & opening & (name == action_tag)
        ends_text = (carry.phase == 1) & ends_action
        cell = carry.word * (NUM_BYTES + 1) + byte
        word, word_end = jnp.asarray(words.next_state)[cell], jnp.asarray(words.event)[cell]
        # word_end: 0 none, 1 an invalid word ended, 2 + a: action a ended
        word_end = jnp.where(ends_text, jnp.asarray(words.final)[carry.word_at_lt], word_end)
        word_ended = (carry.phase == 1) & (word_end > 0)
        here = (jnp.arange(max_actions) == carry.num_words) & word_ended
        return _Carry(
            tag=tag,
            word=jnp.where(starts_text, 0, word),
            word_at_lt=jnp.where(byte == ord("<"), carry.word, carry.word_at_lt),
            phase=jnp.where(starts_text, 1, jnp.where(ends_text, 2, carry.phase)),
            seen_open=carry.seen_open | jnp.where(opening, bit, 0),
            seen_close=carry.seen_close | jnp.where(closing, bit, 0),
            open_tag=open_tag,
            violations=violations,
            extra=jnp.where(ends_action, 0, carry.extra | ~jnp.asarray(white)[byte]),
            num_words=carry.num_words + word_ended,
            actions=jnp.where(here, word_end - 2, carry.actions),
        ), None

    def parse(tokens: jax.Array, length: jax.Array) -> ParsedReply:
        """Parses tokens, int32 [L], of which the first `length` were generated."""
        tokens = jnp.asarray(tokens, jnp.int32)
        generated = jnp.arange(tokens.shape[0]) < length
        first_byte = jnp.asarray(offsets)[tokens]
        num_bytes = jnp.where(generated, jnp.asarray(offsets)[tokens + 1] - first_byte, 0)
        byte_ends = jnp.cumsum(num_bytes)
        total = byte_ends[-1]

        def chunk(state):
            # 64 bytes at a time: find the token that holds each byte, fetch the byte, run the automata over them.
            start, carry = state
            position = start + jnp.arange(_CHUNK)
            token = jnp.sum(byte_ends[None, :] <= position[:, None], axis=1)  # the token that holds the byte
            token = jnp.minimum(token, tokens.shape[0] - 1)
            at = first_byte[token] + position - (byte_ends - num_bytes)[token]
            byte = jnp.asarray(flat_bytes)[jnp.clip(at, 0, flat_bytes.size - 1)].astype(jnp.int32)
            byte = jnp.where(position < total, byte, NUM_BYTES)
            carry, _ = jax.lax.scan(step, carry, byte, unroll=4)
            return start + _CHUNK, carry

        zero = jnp.int32(0)
        carry = _Carry(*[zero] * len(_Carry._fields))._replace(
            open_tag=jnp.int32(-1), actions=jnp.full((max_actions,), -1, jnp.int32)
        )
        _, carry = jax.lax.while_loop(lambda state: state[0] < total, chunk, (zero, carry))

        has_text = carry.phase == 2
        actions = jnp.where(has_text, carry.actions, -1)
        named = jnp.minimum(carry.num_words, max_actions)
        num_actions = jnp.sum(actions >= 0, dtype=jnp.int32)
        num_invalid = jnp.where(has_text, named - num_actions + (carry.num_words > max_actions), 1)
        num_seen = jax.lax.population_count(carry.seen_open) + jax.lax.population_count(carry.seen_close)
        violations = carry.violations + 2 * num_tags - num_seen
        extra_text = ((carry.seen_close >> action_tag) & 1 > 0) & (carry.extra > 0)
        penalty = _format_penalty(jnp, violations, extra_text, length, reply_format)
        return ParsedReply(actions, num_actions, num_invalid, violations, extra_text, penalty)

    return parse
