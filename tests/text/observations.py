"""Parts of templates for tests, and the comparison of their compiled form with the host's text."""

import jax

from nlrl_jax.text.compile import compile_template
from nlrl_jax.text.template import Choice, Literal, Number, Repeat, Template, as_template


def point(x: str, y: str, high: int, index: int | None = None) -> tuple:
    return (Literal("("), Number(x, 0, high, index), Literal(", "), Number(y, 0, high, index), Literal(")"))


def points(name: str, most: int, high: int, empty: str = "none") -> Repeat:
    return Repeat(f"num_{name}", most, point(f"{name}_x", f"{name}_y", high), ", ", empty)


def grid(size: int, symbols: tuple[str, ...], field: str = "cells") -> tuple:
    parts = []
    for i in range(size * size):
        parts += [Choice(field, symbols, i), Literal("\n" if i % size == size - 1 else " ")]
    return tuple(parts[:-1])


def in_chat(tokenizer, template: Template) -> Template:
    """The template as the end of a chat's user message, with a system message and an opened reply."""
    mark = "\x00"
    chat = [
        {"role": "system", "content": "You are a helpful assistant. You answer in XML."},
        {"role": "user", "content": f"You walk on ice.\n\n[Game State]\n{mark}\nReply with one word."},
    ]
    before, after = tokenizer.render_chat(chat).split(mark)
    return as_template(before) + template + after


def compiled_texts(template: Template, tokenizer, fields) -> list[str]:
    """The host's texts of states with a leading axis, after a check that the compiled template gives their tokens."""
    compiled = compile_template(template, tokenizer)
    tokens, lengths = jax.device_get(jax.jit(jax.vmap(compiled))(fields))
    fields, texts = jax.device_get(fields), []
    for i, length in enumerate(lengths):
        texts.append(template.render({name: values[i] for name, values in fields.items()}))
        assert [*compiled.prefix, *tokens[i, :length]] == tokenizer.encode(texts[-1])
        assert (tokens[i, length:] == tokenizer.pad_id).all()
    return texts
