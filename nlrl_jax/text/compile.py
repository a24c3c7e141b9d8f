"""From a template to token ids under `jax.jit`.

    compiled = compile_template(template, tokenizer)
    tokens, length = compiled(fields)      # pure; one state; `jax.vmap(compiled)` for many

`[*compiled.prefix, *tokens[:length]]` equals `tokenizer.encode(template.render(fields))`, token for
token. `cuts.py` decides where the text may be taken apart, `pieces.py` holds the tables and the
device program; this file walks the template from left to right and joins the two.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.text.cuts import Cutter, List, Slot, ahead, merge, rest_of_item, split_parts
from nlrl_jax.text.pieces import LastFlag, TemplatePiece, TokenProgram, assemble, build, refuse_values
from nlrl_jax.text.template import Repeat, Template

_SHORT = 16  # characters: static text shorter than this between two slots gets no piece of its own


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledTemplate:
    """A template for one tokenizer.

    Attributes:
      prefix: int32 [P], the tokens that every rendering begins with.
      max_length: no rendering has more tokens after the prefix.
      program: the tables of what follows the prefix.
      pad_id: what the result is padded with.
    """

    prefix: np.ndarray
    max_length: int
    program: TokenProgram
    pad_id: int

    def __call__(self, fields: Mapping[str, Any]) -> tuple[jax.Array, jax.Array]:
        """Computes the tokens after the prefix for one state.

        Args:
          fields: name -> int array; what the template's `render` reads. Missing items of lists may hold anything.

        Returns:
          tokens int32 [max_length], right-padded with `pad_id`; length int32. Traced values for which `render`
          raises ValueError are clipped to the slot's range.

        Raises:
          KeyError: a field is missing.
          ValueError: fields of several states, too few values, or numbers that are not integers (see `template.read`);
            outside a trace also values for which `render` raises ValueError.
        """
        if not any(isinstance(value, jax.core.Tracer) for value in fields.values()):
            refuse_values(self.program, jax.device_get(dict(fields)))
        return assemble(jnp, self.program, fields, self.pad_id)


def compile_template(template: Template, tokenizer: Tokenizer, continues: bool = False) -> CompiledTemplate:
    """Compiles a template for a tokenizer, and checks the result against `encode(render)` on sample states.

    Args:
      continues: its text stands behind another one, as a reply does (`Tokenizer.encode`).

    Raises:
      ValueError: two slots or lists meet where the tokenizer's tokens or pre-tokens cross (the message shows
        where), or the compiled form differs from `tokenizer.encode` (the message shows the first difference).
    """
    prefix, pieces, lists = _Builder(tokenizer).build(template)
    if tokenizer.adds_space and not prefix and not continues:
        pieces = _beginning(pieces)
    program = build(pieces, lists, tokenizer.encode)
    compiled = CompiledTemplate(
        np.array(tokenizer.encode(prefix, continues), np.int32), program.max_length, program, tokenizer.pad_id
    )
    for fields in sample_fields(template):
        text = template.render(fields)
        _check(compiled, tokenizer, fields, tokenizer.encode(text, continues))
    return compiled


def _beginning(pieces: list[TemplatePiece]) -> list[TemplatePiece]:
    """Marks the pieces that a text without a static prefix begins with: a slot, or a list's first item and `empty`.

    Raises:
      ValueError: they may be empty, so that others may stand first too.
    """
    first = pieces[:1]
    if first and first[0].number is not None and first[0].item is None:
        first = pieces[:2]
    # Without a piece for it, an empty list is no text.
    may_be_absent = bool(first) and first[0].item is not None and pieces[-1].number != first[0].number
    if len(pieces) > 1 and (may_be_absent or not all(text for piece in first for text in piece.strings)):
        raise ValueError(
            "the template begins with a slot or list that may be empty, and this tokenizer puts a space before a text: "
            "the tokens of what follows depend on it; put literal text before it"
        )
    return [*(dataclasses.replace(piece, begins=True) for piece in first), *pieces[len(first) :]]


class _Builder:
    """Walks over a template once, from left to right; `pieces` holds what is finished."""

    def __init__(self, tokenizer: Tokenizer):
        self._cutter = Cutter(tokenizer)
        self.pieces: list[TemplatePiece] = []
        self.lists: list[tuple[str, int]] = []

    def build(self, template: Template) -> tuple[str, list[TemplatePiece], list[tuple[str, int]]]:
        """Returns the static prefix text, the pieces after it, and the lists they refer to."""
        things, gaps = split_parts(template.parts)
        rest = [part for pair in zip(things, gaps[1:], strict=True) for part in pair]
        if not things:
            return gaps[0], [], []
        _, cut = self._cutter.find_cut(("",), gaps[0], ahead(rest, 1))
        prefix = gaps[0][:cut]
        current = self._open(gaps[0][cut:], things[0], rest[1:])
        for i, thing in enumerate(things[1:], start=1):
            gap, after = gaps[i], rest[2 * i :]
            rights = ahead(after, len(current.lefts))
            cuts = self._cutter.find_cut(current.lefts, gap, rights)
            if cuts is None:
                merged = None
                if isinstance(current, _OpenSlot) and isinstance(thing, Slot):
                    merged = merge(current.thing, gap, thing)
                if merged is None:
                    raise self._cutter.refusal(current.thing, current.lefts, gap, rights, thing)
                current = _OpenSlot(current.prefix, merged)
                continue
            first, last = cuts if cuts[1] - cuts[0] > _SHORT else (cuts[0], cuts[0])
            self._close(current, gap[:first])
            self._static(gap[first:last])
            current = self._open(gap[last:], thing, after[1:])
        first, _ = self._cutter.find_cut(current.lefts, gaps[-1], ("",))
        self._close(current, gaps[-1][:first])
        self._static(gaps[-1][first:])
        return prefix, self.pieces, self.lists

    def _static(self, text: str):
        if text:
            self.pieces.append(TemplatePiece((text,)))

    def _open(self, prefix: str, thing, after):
        if isinstance(thing, Slot):
            return _OpenSlot(prefix, thing)
        return _open_list(self._cutter, prefix, thing, after)

    def _close(self, current, suffix: str):
        if isinstance(current, _OpenSlot):
            strings = tuple(current.prefix + text + suffix for text in current.thing.strings)
            self.pieces.append(TemplatePiece(strings, current.thing.variables))
        else:
            self.pieces.extend(current.pieces(len(self.lists), suffix))
            self.lists.append((current.thing.count, current.thing.max_items))


@dataclasses.dataclass(frozen=True)
class _OpenSlot:
    """A slot with the text drawn into it from the left."""

    prefix: str
    thing: Slot

    @functools.cached_property
    def lefts(self) -> list[str]:
        return [self.prefix + text for text in self.thing.strings]


@dataclasses.dataclass(frozen=True)
class _OpenList:
    """A list whose inner cuts are made.

    One item is `slots`, the inner gaps' text drawn into them. `head` stands before the first item's first slot,
    `next_head` before the others'; after an item's last slot stands `tail_next` if another follows, `tail` if not.
    """

    thing: List
    prefix: str
    head: str
    next_head: str
    slots: tuple[Slot, ...]
    tail_next: str
    tail: str

    @functools.cached_property
    def lefts(self) -> list[str]:
        heads = (self.head, self.next_head) if len(self.slots) == 1 else ("",)
        items = [head + text + self.tail for head in heads for text in self.slots[-1].strings]
        return [self.prefix + self.thing.empty, *items]

    def pieces(self, number: int, suffix: str) -> list[TemplatePiece]:
        """Returns the list's pieces, with `suffix` drawn into its end."""
        empty = self.prefix + self.thing.empty + suffix
        pieces = [TemplatePiece((empty,), number=number)] if empty else []
        for i in range(self.thing.max_items):
            for j, slot in enumerate(self.slots):
                variables = tuple(dataclasses.replace(v, index=i) for v in slot.variables)
                head = "" if j else self.head if i == 0 else self.next_head
                tails = [""] if j < len(self.slots) - 1 else [self.tail_next, self.tail + suffix]
                if i == self.thing.max_items - 1 or tails[0] == tails[-1]:
                    tails = tails[-1:]
                else:
                    variables += (LastFlag(number, i),) if len(tails) == 2 else ()
                strings = tuple(head + text + tail for text in slot.strings for tail in tails)
                if any(strings):
                    pieces.append(TemplatePiece(strings, variables, number, i))
        return pieces


def _open_list(cutter: Cutter, prefix: str, of: List, after) -> _OpenList:
    """Makes the cuts inside a list: between the slots of an item, and between two items."""
    head, tail = prefix + of.gaps[0], of.gaps[-1]
    between = tail + of.separator + of.gaps[0]
    done: list[Slot] = []
    drawn, current, checks = "", of.slots[0], []
    for j, slot in enumerate(of.slots[1:], start=1):
        gap = of.gaps[j]
        lefts = [(drawn if done else head) + text for text in current.strings]
        rights = ahead([*rest_of_item(of, j), *after], len(lefts))
        cuts = cutter.find_cut(lefts, gap, rights)
        if cuts is None:
            merged = merge(current, gap, slot)
            if merged is None:
                raise cutter.refusal(current, lefts, gap, rights, slot)
            current = merged
            continue
        if not done:
            checks.append((current, gap, rights, cuts[0], slot))
        done.append(Slot(current.variables, tuple(drawn + text + gap[: cuts[0]] for text in current.strings)))
        drawn, current = gap[cuts[0] :], slot
    last = Slot(current.variables, tuple(drawn + text for text in current.strings))
    done.append(last)
    if of.max_items == 1:
        return _OpenList(of, prefix, head, "", tuple(done), "", tail)

    lefts = [("" if len(done) > 1 else head) + text for text in last.strings]
    rights = ahead([*rest_of_item(of, 0), *after], len(lefts))
    cuts = cutter.find_cut(lefts, between, rights)
    if cuts is None:
        raise cutter.refusal(last, lefts, between, rights, f"the next item of {of}")
    next_head = between[cuts[0] :]
    if len(done) == 1:
        checks.append((last, between, rights, cuts[0], f"the next item of {of}"))
    for slot, gap, rights, position, right_name in checks:  # the same cuts, after an item that is not the first
        lefts = [next_head + text for text in slot.strings]
        if not cutter.is_cut(lefts, gap, rights, position):
            raise cutter.refusal(slot, lefts, gap, rights, right_name)
    return _OpenList(of, prefix, head, next_head, tuple(done), between[: cuts[0]], tail)


def field_ranges(template: Template) -> dict[str, tuple[int, int, int | None]]:
    """Returns the (lowest, highest) value that all slots of a field accept, and its number of elements.

    A scalar has None elements.

    Raises:
      ValueError: no value of a field fits all slots that read it, or it is read both as a scalar and as an array.
    """
    ranges: dict[str, tuple[int, int, int | None]] = {}
    for field, low, high, size in template.reads():
        old_low, old_high, old_size = ranges.get(field, (low, high, size))
        if (size is None) != (old_size is None):
            raise ValueError(f"field {field!r} is read both as a scalar and as an array")
        low, high = max(low, old_low), min(high, old_high)
        if low > high:
            raise ValueError(f"no value of field {field!r} fits all slots that read it")
        ranges[field] = (low, high, None if size is None else max(size, old_size))
    return ranges


def sample_fields(template: Template, num_random: int = 40, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Makes states to check a compiled template on: all fields lowest, all highest, short and full lists, random."""
    ranges = field_ranges(template)
    counts = {part.count: part.max_items for part in template.parts if isinstance(part, Repeat)}
    rng = np.random.default_rng(seed)
    samples = []
    for kind in ("lowest", "highest", *(["random"] * num_random)):
        fields = {}
        for name, (low, high, size) in ranges.items():
            shape = () if size is None else (size,)
            if kind == "random":
                fields[name] = rng.integers(low, high + 1, shape)
            else:
                fields[name] = np.full(shape, low if kind == "lowest" else high)
        if kind == "random":
            for name in counts:
                low, high, _ = ranges[name]
                edge = np.clip(rng.choice([0, 1, 2, high - 1, high]), low, high)
                fields[name] = edge if rng.random() < 0.7 else fields[name]
        samples.append({name: np.asarray(value, np.int32) for name, value in fields.items()})
    return samples


def _check(compiled: CompiledTemplate, tokenizer: Tokenizer, fields, want: list[int]):
    """Raises ValueError where the compiled template's tokens on these fields differ from the tokenizer's."""
    tokens, length = assemble(np, compiled.program, fields, compiled.pad_id)
    got = [*compiled.prefix.tolist(), *tokens[:length].tolist()]
    if got == want:
        return
    at = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))

    def show(ids) -> list[str]:
        return [tokenizer.decode([i], skip_special_tokens=False) for i in ids]

    raise ValueError(
        f"the compiled template differs from encode(render) at token {at}: it gives {show(got[at : at + 4])}, the "
        f"tokenizer {show(want[at : at + 4])}, after {tokenizer.decode(want[max(0, at - 12) : at], False)!r}. "
        "This tokenizer's pre-tokens depend on text further away than the compiler looks; put a literal line between "
        "the slots there."
    )
