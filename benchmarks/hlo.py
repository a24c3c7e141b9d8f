"""Reads a compiled program's optimized HLO: products, collectives and copies, the loops they run in, and their lines.

    program = Program(compiled.as_text())
    program.flop(unknown=199), program.collectives(), program.copies()

A loop whose number of steps XLA does not know (decoding ends when all replies do) counts once, or `unknown` times; one
in a scope "at_most_N" (`lm.experts`) counts N times.
"""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

BYTES = {
    "pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "f8e4m3fn": 1, "f8e5m2": 1, "bf16": 2, "f16": 2, "s16": 2,
    "u16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8, "c64": 8,
}  # fmt: skip
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all")
FREE = {  # not launched: names, structure, and the second half of what was started
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all",
    "partition-id", "replica-id",
}  # fmt: skip
UNKNOWN = "loop[?]"  # a loop of unknown length, in an `Op`'s loops
AT_MOST = "loop[at most "  # one of which the most steps are known
_ARRAY = re.compile(r"\b([a-z]+[0-9]*[a-z0-9]*)\[([0-9,]*)\]")
_LINE = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*)$")
_CALLED = re.compile(r"(?:calls|body|to_apply|called_computations)=\{?%?([\w.\-]+)")
_COPY = re.compile(r"(loop|input|wrapped)_(concatenate|dynamic_slice|pad|slice|convert)|copy|transpose")


class Op:
    """One instruction. type: of its result. code: its HLO name. args: its operands, as text."""

    def __init__(self, name: str, rest: str):
        self.name, self.rest = name, rest
        end = next((i for i, depth in _depths(rest) if rest[i] == " " and not depth), len(rest))
        self.type, after = rest[:end], rest[end + 1 :]
        self.code, _, operands = after.partition("(")
        self.args = operands.split(")", 1)[0]
        self.target = _group(r'custom_call_target="([^"]*)"', rest)
        self.trips = _group(r'known_trip_count":\{"n":"(\d+)"', rest)
        self.most_trips = _group(r'op_name="[^"]*at_most_(\d+)/while"', rest)
        self.frame = int(_group(r"stack_frame_id=(\d+)", rest) or 0)

    def sizes(self) -> list[float]:
        """Bytes of the arrays of its result."""
        return [BYTES[kind] * math.prod(dims) for kind, dims in _arrays(self.type)]


class Collective(NamedTuple):
    """kind, loops: "all-gather", and the loops around it, such as "loop[5]/loop[?]". line: the project's innermost.

    type: of the result. number: how many there are in the program. runs: how often they run. bytes: of one's result.
    """

    kind: str
    loops: str
    type: str
    line: str
    number: int
    runs: float
    bytes: float


class Copy(NamedTuple):
    """Arrays written only to change their layout. kind: the fusion's name without its number. type: of the result.
    bytes: in all runs."""

    kind: str
    loops: str
    type: str
    line: str
    runs: float
    bytes: float


class Program:
    """Instructions of an optimized module by computation, and how often each computation runs."""

    def __init__(self, text: str):
        self.computations: dict[str, list[Op]] = {}
        entry, current = "", None
        for line in text.splitlines():
            if line.endswith("{") and " -> " in line and not line.startswith(" "):
                name = line.split("(")[0].replace("ENTRY", "").strip().lstrip("%")
                current = self.computations.setdefault(name, [])
                entry = name if line.startswith("ENTRY") else entry
            elif line.startswith("}"):
                current = None
            elif current is not None and (match := _LINE.match(line)):
                current.append(Op(*match.groups()))
        if not entry:
            raise ValueError(f"the text is no HLO module with an ENTRY; it begins {text[:60]!r}")
        self._frames = _frames(text)
        self._times: dict[str, float] = collections.defaultdict(float)
        self._loops: dict[str, str] = {}
        self._walk(entry, 1.0, ())

    def ops(self) -> Iterator[tuple[str, float, Op]]:
        """(loops, runs, op) of all that is launched; what is inside a fusion is left out."""
        for name, times in list(self._times.items()):
            for op in self.computations[name]:
                yield self._loops[name], times, op

    def loops(self) -> Iterator[tuple[str, str]]:
        """(computation, loops) of all that run."""
        yield from self._loops.items()

    def launches(self) -> list[tuple[str, int]]:
        """Kernels, library calls and copies that one pass of each computation starts itself, with the loops around it;
        the body of a loop is one."""
        rows = []
        for name in self._times:
            codes = [op.code for op in self.computations[name]]
            rows.append((self._loops[name], sum(c not in FREE and not c.endswith("-done") for c in codes)))
        return rows

    def flop(self, unknown: float = 1.0) -> dict[str, float]:
        """Floating-point operations of matrix products by loops, in all runs."""
        flop: dict[str, float] = collections.Counter()
        for name, times in self._times.items():
            loops = self._loops[name]
            if once := self._products(name):
                flop[loops] += once * times * unknown ** loops.count(UNKNOWN)
        return dict(flop)

    def collectives(self) -> list[Collective]:
        """What devices exchange, the most bytes first."""
        rows: dict[tuple, list[float]] = {}
        for loops, runs, op in self.ops():
            kind = op.code.removesuffix("-start")
            if kind not in COLLECTIVES:
                continue
            sizes = op.sizes()  # a started gather's type holds its operands too
            bytes_ = sum(sizes[len(sizes) // 2 :] if op.code == "all-gather-start" else sizes)
            row = rows.setdefault((kind, loops, op.type, self.line(op)), [0, 0.0, bytes_])
            row[0] += 1
            row[1] += runs
        collectives = [Collective(*key, int(number), runs, each) for key, (number, runs, each) in rows.items()]
        return sorted(collectives, key=lambda row: -row.runs * row.bytes)

    def copies(self, smallest: float = 2**19) -> list[Copy]:
        """Copies, slices, conversions and the like with results of at least so many bytes, the most bytes first."""
        rows: dict[tuple, list[float]] = {}
        for loops, runs, op in self.ops():
            bytes_ = sum(op.sizes())
            if _COPY.match(op.name) and bytes_ >= smallest:
                row = rows.setdefault((re.sub(r"[\d.]+$", "", op.name), loops, op.type, self.line(op)), [0.0, 0.0])
                row[0] += runs
                row[1] += runs * bytes_
        return sorted((Copy(*key, *row) for key, row in rows.items()), key=lambda row: -row.bytes)

    def line(self, op: Op) -> str:
        """The project's two innermost lines that an op comes from, such as "lm/score.py:76 < algorithms/sft.py:99"."""
        lines = []
        for file, number in self._frames.get(op.frame, []):
            if "site-packages" not in file and "nlrl_jax/" in file:
                lines.append(f"{file.rsplit('nlrl_jax/')[-1]}:{number}")
        return " < ".join(lines[:2])

    def _walk(self, name: str, times: float, loops: tuple[str, ...]) -> None:
        if name not in self.computations:
            return
        self._times[name] += times
        self._loops.setdefault(name, "/".join(loops))
        for op in self.computations[name]:
            if op.code == "while":
                step = f"{AT_MOST}{op.most_trips}]" if op.most_trips and not op.trips else f"loop[{op.trips or '?'}]"
                steps = float(op.trips or op.most_trips or 1)
                self._walk(_group(r"body=%?([\w.\-]+)", op.rest), times * steps, (*loops, step))
            elif op.code == "conditional":
                listed = _group(r"branch_computations=\{([^}]*)\}", op.rest)
                either = re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", op.rest)
                for called in listed.split(",") if listed else either:
                    self._walk(called.strip().lstrip("%"), times, (*loops, "if"))
            elif op.code in ("call", "async-start"):
                for called in _CALLED.findall(op.rest):
                    self._walk(called, times, loops)

    def _products(self, name: str, inside: bool = False) -> float:
        types = {op.name: op.type for op in self.computations[name]}
        total = 0.0
        for op in self.computations[name]:
            matmul = "cublas" in op.target or op.target.startswith("__onednn$matmul")
            if op.code in ("dot", "convolution") or matmul:
                names = operands(op)
                lhs, rhs = (types.get(name, arg) for name, arg in list(zip(names, _split(op.args)))[:2])
                total += 2.0 * math.prod(_dims(op.type)) * _contracted(op, _dims(lhs), _dims(rhs))
            elif op.code == "fusion" or (inside and op.code in ("call", "async-start")):
                called = (called for called in _CALLED.findall(op.rest) if called in self.computations)
                total += sum(self._products(computation, True) for computation in called)
        return total


def operands(op: Op) -> list[str]:
    """Names of an operation's operands."""
    return [re.sub(r"/\*.*?\*/", "", arg).split(" ")[-1].strip().lstrip("%") for arg in _split(op.args)]


def dims_of(text: str) -> list[list[int]]:
    """The sizes of each array of a type."""
    return [dims for _, dims in _arrays(text)]


def _contracted(op: Op, lhs: list[int], rhs: list[int]) -> int:
    """How many products each number of the result sums."""
    if op.code == "convolution":
        labels = _group(r"dim_labels=\w+_(\w+)->", op.rest)
        return math.prod(n for n, label in zip(rhs, labels) if label != "o")
    axes = _group(r'lhs_contracting_dim(?:ension)?s"?[=:][\[{]([^\]}]*)', op.rest)
    return math.prod(lhs[int(i)] for i in re.findall(r"\d+", axes)) if axes else lhs[-1]


def _frames(text: str) -> dict[int, list[tuple[str, int]]]:
    """Stack frame -> (file, line) of it and its callers."""
    tables = {}
    for title in ("FileNames", "FileLocations", "StackFrames"):
        rows = _group(rf"(?m)^{title}\n((?:\d+ .*\n)*)", text)
        tables[title] = dict(line.split(" ", 1) for line in rows.splitlines())

    def number(row: str, key: str) -> str:
        return _group(rf"\b{key}=(\d+)", row)

    frames = {}
    for first in tables["StackFrames"]:
        chain, at, frames_left = [], first, dict(tables["StackFrames"])
        while frame := frames_left.pop(at, ""):  # each once: a chain may close
            place = tables["FileLocations"].get(number(frame, "file_location_id"), "")
            file = tables["FileNames"].get(number(place, "file_name_id"), "").strip('"')
            chain.append((file, int(number(place, "line") or 0)))
            at = number(frame, "parent_frame_id")
        frames[int(first)] = chain
    return frames


def _arrays(text: str) -> list[tuple[str, list[int]]]:
    arrays = ((kind, [int(d) for d in dims.split(",") if d]) for kind, dims in _ARRAY.findall(text))
    return [(kind, dims) for kind, dims in arrays if kind in BYTES]


def _dims(text: str) -> list[int]:
    return next((dims for _, dims in _arrays(text)), [])


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """(i, brackets that are open after character i)."""
    depth = 0
    for i, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        yield i, depth


def _split(text: str) -> list[str]:
    """Operands, split at the commas outside brackets."""
    cuts = [i for i, depth in _depths(text) if text[i] == "," and not depth]
    parts = (text[a:b] for a, b in zip([0, *(i + 1 for i in cuts)], [*cuts, len(text)]))
    return [part.strip() for part in parts if part.strip()]


def _group(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match.group(1) if match else ""
