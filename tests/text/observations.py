"""Templates shaped like the observations in the appendix of the MS-GRPO paper, and others for tests."""

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


def frozen_lake(size: int = 4) -> Template:
    """Coordinates, a list of holes and a grid."""
    return Template(
        (Literal(f"The board is {size}x{size}. X grows to the right and Y upwards.\nPlayer position: "),)
        + point("player_x", "player_y", size - 1)
        + (Literal("\nHoles: "), points("holes", size * size, size - 1), Literal("\nGoal: "))
        + point("goal_x", "goal_y", size - 1)
        + (Literal("\nThe symbols are:\n- P: player\n- O: hole\n- G: goal\n- _: empty\nState:\n"),)
        + grid(size, ("_", "P", "O", "G"))
        + (Literal("\n"),)
    )


def snake(size: int = 10, segments: int = 6, apples: int = 5) -> Template:
    """Lists of apples and of two bodies, heads, numbers of two digits in between, and a grid."""
    high = size if size > 9 else size - 1
    return Template(
        (Literal("Apples at: "), points("apples", apples, high, "nowhere"))
        + (Literal(" (worth "), Number("worth", -1, 12), Literal(" points each)\n"))
        + (Literal("Enemy snakes:\n* Snake ID 2 has its head at "),)
        + point("enemy_x", "enemy_y", high)
        + (Literal(" and body segments at ["), points("enemy_body", segments, high, ""), Literal("]\nYour head is at "))
        + point("head_x", "head_y", high)
        + (Literal(" and body segments at ["), points("body", segments, high, ""), Literal("]\n\n"))
        + grid(size, ("_", "1", "2", "T", "A"))
    )


def in_chat(tokenizer, template: Template) -> Template:
    """The template as the end of a chat's user message, with a system message and an opened reply."""
    mark = "\x00"
    chat = [
        {"role": "system", "content": "You are a helpful assistant. You answer in XML."},
        {"role": "user", "content": f"You walk on ice.\n\n[Game State]\n{mark}\nReply with one word."},
    ]
    before, after = tokenizer.render_chat(chat).split(mark)
    return as_template(before) + template + after
