"""Templates as data: one description of a text, rendered to `str` on the host.

A template is a sequence of parts: literals, slots (one string out of a finite list, or a number
in a range) and repeated lists. `compile.py` turns the same data into token ids under `jax.jit`.

    template = Template((
        Literal("Holes: "),
        Repeat("num_holes", 16, (Literal("("), Number("hole_x", 0, 3), Literal(", "),
                                 Number("hole_y", 0, 3), Literal(")")), separator=", ", empty="none"),
    ))
    template.render({"num_holes": 1, "hole_x": [2] + [0] * 15, "hole_y": [3] + [0] * 15})
    # 'Holes: (2, 3)'
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Literal:
    """Text that is always the same."""

    text: str


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of `options`, chosen by the integer `fields[field]` (or `fields[field][index]`).

    Inside a `Repeat` the field is an array `[max_items]` and `index` must be None.
    """

    field: str
    options: tuple[str, ...]
    index: int | None = None
    low: int = 0  # the field's value that selects options[0]

    def __post_init__(self):
        if not self.options:
            raise ValueError(f"slot {self.field!r} has no options; give at least one string or number")
        if self.index is not None and self.index < 0:
            raise ValueError(f"slot {self.field!r} has index {self.index}; it must be at least 0")


def Number(field: str, low: int, high: int, index: int | None = None) -> Choice:
    """A decimal number between `low` and `high`, both included."""
    if high < low:
        raise ValueError(f"slot {field!r}: range {low}..{high} is empty")
    return Choice(field, tuple(str(n) for n in range(low, high + 1)), index, low)


@dataclasses.dataclass(frozen=True)
class Repeat:
    """The first `fields[count]` of `max_items` copies of `item`, joined by `separator`.

    Slots of the item read element `i` of their field, an array `[max_items]`. A count of zero
    renders `empty`.
    """

    count: str
    max_items: int
    item: tuple[Literal | Choice, ...]
    separator: str = ", "
    empty: str = ""

    def __post_init__(self):
        if self.max_items < 0:
            raise ValueError(f"list {self.count!r} holds at most {self.max_items} items; it must be at least 0")


Part = Literal | Choice | Repeat


@dataclasses.dataclass(frozen=True)
class Template:
    """A sequence of parts. Templates and strings can be added to either side."""

    parts: tuple[Part, ...]

    def __add__(self, suffix: Template | str) -> Template:
        return Template(self.parts + as_template(suffix).parts)

    def __radd__(self, prefix: str) -> Template:
        return Template(as_template(prefix).parts + self.parts)

    def stripped(self, start: bool, end: bool) -> Template:
        """Strips white space at these ends of all renderings, as far as the parts there allow it."""
        parts = list(self.parts)
        for is_stripped, at, strip in ((start, 0, str.lstrip), (end, -1, str.rstrip)):
            while is_stripped and parts:
                part = parts.pop(at)
                if part := _stripped_part(part, strip):
                    parts.insert(len(parts) if at else 0, part)
                    break
        return Template(tuple(parts))

    def render(self, fields: Mapping[str, Any]) -> str:
        """Renders the text for one state.

        Args:
          fields: name -> int, or a sequence of ints for indexed and repeated slots.

        Raises:
          KeyError: a slot's field is missing.
          ValueError: a value outside its slot's range, or a count above `max_items`; fields of several states, too few
            values, or numbers that are not integers (see `read`).
        """
        return "".join(_render_part(part, fields) for part in self.parts)

    def check(self, fields: Mapping[str, Any]) -> None:
        """Checks the shapes and types of the fields, which may be abstract. Errors: see `read`."""
        for field, _, _, size in self.reads():
            read(fields, field, size)

    def reads(self) -> Iterator[tuple[str, int, int, int | None]]:
        """Yields (field, lowest, highest value, number of values or None: a scalar) of each slot and list's count."""
        for part in self.parts:
            slots, size = (part,), None
            if isinstance(part, Repeat):
                yield part.count, 0, part.max_items, None
                slots, size = part.item, part.max_items
            for slot in slots:
                if isinstance(slot, Choice):
                    number = size if slot.index is None else slot.index + 1
                    yield slot.field, slot.low, slot.low + len(slot.options) - 1, number


def as_template(value: Template | str) -> Template:
    """Turns a string into a template of one literal; a template stays as it is."""
    return value if isinstance(value, Template) else Template((Literal(value),))


def _stripped_part(part: Part, strip: Callable[[str], str]) -> Part | None:
    """Strips white space at one end of a part; None where nothing is left.

    A choice with an option of white space alone stays as it is.
    """
    match part:
        case Literal():
            return Literal(strip(part.text)) if strip(part.text) else None
        case Choice():
            options = tuple(map(strip, part.options))
            return dataclasses.replace(part, options=options) if all(options) else part
        case Repeat(item=(*first, Literal(text))) if strip is str.rstrip and text.rstrip() != text:
            remainder = text.rstrip()
            item = (*first, Literal(remainder)) if remainder else tuple(first)
            separator = text[len(remainder) :] + part.separator
            return dataclasses.replace(part, item=item, separator=separator, empty=part.empty.rstrip())
    return part


def read(fields: Mapping[str, Any], name: str, size: int | None) -> Any:
    """Reads a slot's field as an array: one integer if `size` is None, else `size` integers or more.

    Only its shape and type are looked at, so it may be traced.

    Raises:
      KeyError: it is missing.
      ValueError: it has another shape, such as a batch's, or is not of integers (or booleans).
    """
    if name not in fields:
        raise KeyError(f"the template needs the field {name!r}; got {sorted(fields)}")
    value = fields[name] if hasattr(fields[name], "dtype") else np.asarray(fields[name])
    if len(value.shape) != (0 if size is None else 1):
        expected = "one integer, of shape ()" if size is None else f"{size} integers, of shape ({size},)"
        raise ValueError(
            f"field {name!r} has shape {tuple(value.shape)}; a template reads one state, and of it {expected}: "
            "`jax.vmap` a compiled one over several"
        )
    if size is not None and value.shape[0] < size:
        raise ValueError(f"field {name!r} holds {value.shape[0]} values; the template reads {size}")
    if not (np.issubdtype(value.dtype, np.integer) or value.dtype == bool) and value.size:
        raise ValueError(f"field {name!r} holds {value.dtype}; it must be integers")
    return value


def _render_part(part: Part, fields: Mapping[str, Any]) -> str:
    """Writes one part with the fields of one state."""
    match part:
        case Literal():
            return part.text
        case Choice():
            return _option(part, fields, part.index)
        case Repeat():
            count = int(read(fields, part.count, None))
            if not 0 <= count <= part.max_items:
                raise ValueError(f"{part.count} is {count}; this list holds 0 to {part.max_items} items")
            items = (
                "".join(p.text if isinstance(p, Literal) else _option(p, fields, i) for p in part.item)
                for i in range(count)
            )
            return part.separator.join(items) if count else part.empty
    raise TypeError(f"not a part of a template: {part!r}")


def _option(slot: Choice, fields: Mapping[str, Any], index: int | None) -> str:
    value = read(fields, slot.field, None if index is None else index + 1)
    value = int(value if index is None else value[index])
    if not 0 <= value - slot.low < len(slot.options):
        last = slot.low + len(slot.options) - 1
        raise ValueError(f"field {slot.field!r} is {value}; its slot takes {slot.low} to {last}")
    return slot.options[value - slot.low]
