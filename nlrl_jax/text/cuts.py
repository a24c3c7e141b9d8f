"""Where the text of a template may be cut, whatever its slots hold.

The tokenizer splits a text into pre-tokens and merges only within them, so a text may be encoded in
parts that meet at pre-token borders. Whether two strings meet at one depends on both: Qwen and Llama-3
glue a space to the word after it and newlines to the punctuation before them. SentencePiece's
tokenizers, which have no pre-tokens, merge wherever a token spans two strings (`lm/borders.py`).

A template consists of *things* (slots and lists) with literal *gaps* between them. For each gap
`find_cut` looks for positions that are borders for every text that may stand before and after it.
What lies before the first such position is drawn into the strings of the thing on the left, what lies
after the last into those on the right.

The texts before a gap begin at the last cut, which is a border already; the splitters in use look
ahead but never back, so nothing further left matters. The texts after it are followed as far as
their number allows (`ahead`). `compile.py` checks the result against whole renderings besides.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.text.template import Choice, Literal, Part, Repeat

MAX_OPTIONS = 4096  # of a merged slot
_MAX_TEXTS = 2000  # contexts examined for one gap
_LONG_GAP = 96  # characters; the two ends of a longer gap are examined apart
_END = 48  # how much of a long gap's end is examined


@dataclasses.dataclass(frozen=True)
class Variable:
    """Reads `fields[field]`, `fields[field][index]`, or in a list the item's element; `low` selects option 0."""

    field: str
    index: int | None
    low: int
    size: int


@dataclasses.dataclass(frozen=True)
class Slot:
    """One of `strings`, chosen by `variables` in mixed radix, the first one slowest."""

    variables: tuple[Variable, ...]
    strings: tuple[str, ...]

    def __str__(self):
        names = [v.field if v.index is None else f"{v.field}[{v.index}]" for v in self.variables]
        return f"slot {' and '.join(repr(name) for name in names)}" if names else "constant text"


@dataclasses.dataclass(frozen=True)
class List:
    """A `Repeat`: `gaps[0] slots[0] gaps[1] slots[1] ... gaps[k]` is one item."""

    count: str
    max_items: int
    slots: tuple[Slot, ...]
    gaps: tuple[str, ...]
    separator: str
    empty: str

    def __str__(self):
        return f"list {self.count!r}"


Thing = Slot | List


def split_parts(parts: Sequence[Part], inside_list: bool = False) -> tuple[list[Thing], list[str]]:
    """Splits a template into slots and lists and the literal gaps around them: `gaps[i]` stands before `things[i]`."""
    things: list[Thing] = []
    gaps = [""]
    for part in parts:
        match part:
            case Literal(text=text) | Choice(options=(text,)) | Repeat(max_items=0, empty=text):
                gaps[-1] += text
                continue
            case Choice():
                if inside_list and part.index is not None:
                    raise ValueError(f"slot {part.field!r} in a list reads element i; drop index={part.index}")
                variable = Variable(part.field, part.index, part.low, len(part.options))
                things.append(Slot((variable,), part.options))
            case Repeat() if not inside_list:
                slots, inner = split_parts(part.item, inside_list=True)
                if not slots:  # an item that never changes: its text is the one option of a slot
                    slots, inner = [Slot((), (inner[0],))], ["", ""]
                things.append(List(part.count, part.max_items, tuple(slots), tuple(inner), part.separator, part.empty))
            case _:
                raise TypeError(f"not a part of a template{' item' if inside_list else ''}: {part!r}")
        gaps.append("")
    return things, gaps


def merge(left: Slot, gap: str, right: Slot) -> Slot | None:
    """Merges both slots and the gap into one slot; None if it had too many options."""
    if len(left.strings) * len(right.strings) > MAX_OPTIONS:
        return None
    strings = tuple(a + gap + b for a, b in itertools.product(left.strings, right.strings))
    return Slot(left.variables + right.variables, strings)


@dataclasses.dataclass(frozen=True)
class Tail:
    """What may follow an item of a list, in the list."""

    of: List


class _TooMany(Exception):
    """More beginnings than one gap's budget."""


def ahead(parts: Sequence[str | Thing | Tail], num_lefts: int) -> tuple[str, ...]:
    """Lists the beginnings of all texts that `parts` may render, of two characters or more if their number allows."""
    best = _beginnings(parts, 2, limit=10**6)
    for width in (3, 4, 6, 8, 12, 16, 24):
        try:
            best = _beginnings(parts, width, limit=_MAX_TEXTS // num_lefts)
        except _TooMany:
            break
    return tuple(sorted(best))


def _beginnings(parts, width: int, limit: int) -> set[str]:
    """Lists the beginnings, of `width` characters or of all there are, of the texts that `parts` may render."""
    front = {""}
    for part in parts:
        missing = width - min(len(text) for text in front)
        if missing <= 0:
            break
        front = _extend(front, _options(part, missing, limit), width, limit)
    return front


def _extend(front: set[str], options: set[str], width: int, limit: int) -> set[str]:
    done = {text for text in front if len(text) >= width}
    for text in front - done:
        done |= {(text + option)[:width] for option in options}
        if len(done) > limit:
            raise _TooMany
    return done


def _options(part, width: int, limit: int) -> set[str]:
    """Lists the beginnings, `width` characters each, of all texts that a part can be."""
    match part:
        case str():
            return {part[:width]}
        case Slot():
            return {text[:width] for text in part.strings}
        case List():
            first = _beginnings(_item(part), width, limit)
            return {part.empty[:width]} | _extend(first, _options(Tail(part), width, limit), width, limit)
        case Tail(of=of):
            options = front = {""}
            one_more = _beginnings([of.separator, *_item(of)], width, limit)
            for _ in range(of.max_items - 1):
                front = _extend(front, one_more, width, limit)
                if front <= options:
                    break
                options = options | front
            return options
    raise TypeError(part)


def _item(of: List) -> list[str | Slot]:
    return [of.gaps[0], *itertools.chain.from_iterable(zip(of.slots, of.gaps[1:], strict=True))]


def rest_of_item(of: List, slot: int) -> list[str | Slot | Tail]:
    """Returns what follows the gap before `slot` in an item, and in the list after it."""
    return [*_item(of)[1 + 2 * slot :], Tail(of)]


class Cutter:
    """Finds cuts with one tokenizer and remembers them."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._cuts: dict[tuple, tuple[int, int] | None] = {}

    def find_cut(self, lefts: Sequence[str], gap: str, rights: Sequence[str]) -> tuple[int, int] | None:
        """Finds the first and last position of `gap` that is a border in all `left + gap + right`; None without one."""
        lefts, rights = tuple(dict.fromkeys(lefts)), tuple(dict.fromkeys(rights))
        key = (lefts, gap, rights)
        if key not in self._cuts:
            self._cuts[key] = self._search(lefts, gap, rights)
        return self._cuts[key]

    def is_cut(self, lefts: Sequence[str], gap: str, rights: Sequence[str], position: int) -> bool:
        """Whether `position` of `gap` is a border for all of `lefts` and `rights`."""
        return position in self._safe(lefts, gap, rights)

    def _search(self, lefts, gap, rights):
        """Finds the first and the last safe position in a gap, end by end where the gap is long."""
        if len(gap) > _LONG_GAP:
            # Both ends alone, so that not every context is tokenized with all of the gap.
            first = {p for p in self._safe(lefts, gap[:_LONG_GAP], ("",)) if p <= _END}
            whole = self._tokenizer.borders(lefts[0] + gap + rights[0])
            start = max((p - len(lefts[0]) for p in whole if 0 <= p - len(lefts[0]) <= len(gap) - _END), default=None)
            if first and start is not None and start >= min(first):
                last = self._safe(("",), gap[start:], rights)
                return min(first), start + max(last)
        safe = self._safe(lefts, gap, rights)
        return (min(safe), max(safe)) if safe else None

    def _safe(self, lefts, gap, rights) -> set[int]:
        """Finds the positions of `gap` up to which every text splits by itself as it does with what follows.

        A border alone would not do: two spaces are one pre-token at the end of a text but two before a word.
        """
        safe = set(range(len(gap) + 1))
        alone: dict[str, set[int]] = {}
        for left, right in itertools.product(lefts, rights):
            text = left + gap + right
            borders = self._tokenizer.borders(text, is_cut_short=bool(right))
            pre_tokens = self._tokenizer.pre_token_borders(text)
            for p in sorted(safe):
                head = left + gap[:p]
                if len(head) not in borders:
                    safe.discard(p)
                    continue
                if head not in alone:
                    alone[head] = self._tokenizer.pre_token_borders(head)
                if not _are_equal_before(len(head), alone[head], pre_tokens):
                    safe.discard(p)
            if not safe:
                break
        return safe

    def refusal(self, left_name, lefts, gap, rights, right_name) -> ValueError:
        """Describes a gap without a cut, with an example of what the tokenizer does there."""
        tokenizer, examples = self._tokenizer, []
        for position in range(min(len(gap), 3) + 1):
            for left, right in itertools.product(lefts, rights):
                text, head = left + gap + right, left + gap[:position]
                token = None if tokenizer.border_problem else tokenizer.spanning_token(text, len(head), bool(right))
                if token is not None:
                    examples.append(f"  {head!r} | {text[len(head) :]!r}: the token {token!r} spans the border")
                    break
                alone, pre_tokens = tokenizer.pre_token_borders(head), tokenizer.pre_token_borders(text)
                if len(head) not in pre_tokens or not _are_equal_before(len(head), alone, pre_tokens):
                    words = [text[start:end] for start, end, _ in tokenizer.words(text)]
                    examples.append(f"  {head!r} | {text[len(head) :]!r} splits as {words}")
                    break
        unit = "tokens" if not tokenizer.border_problem else "pre-tokens"
        return ValueError(
            f"the template cannot be cut between {left_name} and {right_name} (literal text between them: {gap!r}): "
            f"this tokenizer's {unit} cross the border (|) there\n"
            + "\n".join(examples)
            + (f"\nWithin pre-tokens no cut is safe: {tokenizer.border_problem}." if tokenizer.border_problem else "")
            + "\nPut text between the two that it splits off, such as a newline before a letter, "
            f"or make them one slot of at most {MAX_OPTIONS} options."
        )


def _are_equal_before(position: int, first: set[int], second: set[int]) -> bool:
    return {border for border in first if border < position} == {border for border in second if border < position}
