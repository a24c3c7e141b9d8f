"""Chats with the replies that a model is to learn, as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nlrl_jax.lm.thoughts import closing
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.types import Pairs, Piece


class Example(NamedTuple):
    """tokens: prompt, reply and end token. start: index of the reply's first token, at least 1. weights: of the tokens
    from there on, in the loss; empty: 1 each."""

    tokens: list[int]
    start: int
    weights: Sequence[float] = ()


def tokenize(tokenizer: Tokenizer, pairs: Pairs) -> list[Example]:
    """Chats with their target replies, as tokens."""
    end = tokenizer.end_id
    prompts: dict[str, list[int]] = {}
    examples = []
    for chat, reply in pairs:
        text = tokenizer.render_chat(chat.messages)
        # Many pairs share a prompt, which is tokenised once.
        if text not in prompts:
            prompts[text] = tokenizer.encode(text)
        if isinstance(reply, str):
            reply = [Piece(reply)] if chat.is_open else [Piece(reply), Piece(None)]
        if not chat.is_open and (end_of_thought := closing(text)):
            reply = [Piece(end_of_thought), *reply]  # the template opens a thought: an empty one is learned
        tokens, weights = list(prompts[text]), []
        for piece in reply:
            if piece.text is None:
                new = [end]
            else:
                continues = not tokenizer.puts_space_after(tokens)
                new = tokenizer.encode(tokenizer.as_content(piece.text), continues)
            tokens += new
            weights += [piece.learned] * len(new)
        examples.append(Example(tokens, len(prompts[text]), weights))
    return examples


def check_examples(vocab_size: int, indices: list[int], examples: Sequence[Example]) -> None:
    """Raises ValueError: one of these examples is malformed."""
    for n in indices:
        tokens, start, weights = examples[n].tokens, examples[n].start, examples[n].weights
        if not 1 <= start < len(tokens):
            raise ValueError(f"example {n} has {len(tokens)} tokens and start {start}; its reply begins at 1 or later")
        if not 0 <= min(tokens) <= max(tokens) < vocab_size:
            raise ValueError(f"example {n} has ids from {min(tokens)} to {max(tokens)}; the model has {vocab_size}")
        if weights and len(weights) != len(tokens) - start:
            raise ValueError(
                f"example {n} has {len(weights)} weights for the {len(tokens) - start} tokens of its reply"
            )
