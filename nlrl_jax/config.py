"""Configuration as frozen dataclasses: a field carries its default, its help text and its bounds.

    batch_size: int = option(64, "rows per gradient step", least=1)          # in SFTConfig, which calls `check(self)`

A script's config is made of the library's: `part` holds one as a field, whose options become the script's own, flat and
with other names where the script says so.

    class TrainConfig:
        iterations: int = option(700, "iterations", least=1)
        sft: SFTConfig = part(SFTConfig(), names={"max_length": "row_tokens"}, without=("seed",))

    config = make(TrainConfig, iterations=5, row_tokens=256)      # flat names in
    flat(config)                                                # {"iterations": 5, "learning_rate": 1e-05, ...}
    replace(config, batch_size=2)                               # the same with another value
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import numbers
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

DTYPES = ("", "float32", "bfloat16")
MOST_SEED = 2**32 - 1  # `jax.random.key` drops all but 32 bits, so larger seeds would be others' doubles
# Of numbers without bounds of their own: a compiled program computes in 32 bits.
LIMITS = {"int": (-(2**31), 2**31 - 1), "float": (-3.4e38, 3.4e38)}
# What JSON may hold by mistake in place of an option's kind.
_WRONG = {
    "int": ((str, bool, float, list, dict, type(None)), "a whole number"),
    "float": ((str, bool, list, dict, type(None)), "a number"),
    "bool": ((str, int, float, list, dict, type(None)), "true or false"),
    "str": ((bool, int, float, list, dict, type(None)), "text"),
}


class OptionError(ValueError):
    """A value outside its bounds. The message begins with the option's name."""


def option(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Collection[str] = (),
    infinite: bool = False,
    auto: bool = False,
    switch: bool = False,
    before: Any = None,
) -> Any:
    """A dataclass field with a help text and bounds, which `check` enforces.

    Args:
      least, most: inclusive bounds; without them a number must fit 32 bits. above, below: exclusive ones.
      choices: the values a string may have.
      infinite: inf and -inf are allowed; nan never is.
      auto: the word "auto" is allowed in place of a number. `replace` also reads -1 as "auto", because runs of earlier
        versions stored it.
      switch: a string that is also "on" or "off", as which a lone --NAME and --noNAME are read, and the booleans that
        earlier versions stored.
      before: the value of runs from before there was this option; None is the default.
    """
    bounds = {"least": least, "most": most, "above": above, "below": below, "choices": tuple(choices)}
    kinds = {"infinite": infinite, "auto": auto, "switch": switch, "before": before}
    return dataclasses.field(default=default, metadata={"help": help, **kinds, **bounds})


def joined_option(help: str) -> Any:
    """`option` for a string that may be given several times; commas join them."""
    return dataclasses.field(default="", metadata={**option("", help).metadata, "joined": True})


def seed_option(help: str, counted_up: bool = False) -> Any:
    """`option` for a seed that becomes a key; `counted_up`: and others above it do, which must have room."""
    return option(0, help, least=0, most=MOST_SEED // 2 if counted_up else MOST_SEED)


def check_seed(seed: int) -> int:
    """The seed. Raises ValueError: no integer from 0 to 2^32 - 1, of which alone `jax.random.key` reads all bits."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or not 0 <= seed <= MOST_SEED:
        raise ValueError(f"seed is {seed!r}; it must be an integer from 0 to {MOST_SEED}")
    return int(seed)


def part(default: Any, *, names: Mapping[str, str] | None = None, without: Collection[str] = ()) -> Any:
    """A field that is itself a config: its options stand among those of the config that holds it.

    Args:
      default: the config, whose values are the options' defaults.
      names: its fields -> the options' names, where they differ.
      without: its fields that are not options and keep the value in `default`.
    """
    return dataclasses.field(
        default_factory=lambda: default,
        metadata={"part": type(default), "names": dict(names or {}), "without": frozenset(without)},
    )


class Option(NamedTuple):
    """One option of a config, parts included.

    name: flat. path: (field,) or (part, ..., field). kind: "int", "float", "bool" or "str".
    group: the dataclass that declares it. joined: see `joined_option`. auto, switch, before: see `option`.
    """

    name: str
    path: tuple[str, ...]
    kind: str
    default: Any
    help: str
    group: type
    joined: bool
    auto: bool
    switch: bool
    before: Any


def options(config: Any) -> list[Option]:
    """The options of a config, given as a value or (with its own defaults) as a class. Fields without help are none.

    Raises:
      TypeError: two options of one name.
    """
    entries = list(_options(config() if isinstance(config, type) else config))
    names = [entry.name for entry in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TypeError(f"{type(config).__name__} has two options named {', '.join(twice)}")
    return entries


def _options(config: Any, path: tuple[str, ...] = (), names: Mapping[str, str] = {}, without=frozenset()) -> Iterator:
    declared_here = inspect.get_annotations(type(config))
    # A config that extends another lists its own options first.
    for field in sorted(dataclasses.fields(config), key=lambda field: field.name not in declared_here):
        if field.name in without:
            continue
        value, meta = getattr(config, field.name), field.metadata
        if "part" in meta:
            yield from _options(value, (*path, field.name), meta["names"], meta["without"])
        elif "help" in meta:
            name = names.get(field.name, field.name)
            joined = meta.get("joined", False)
            kinds = (joined, meta["auto"], meta["switch"], meta["before"])
            yield Option(name, (*path, field.name), _kind_of(field), value, meta["help"], type(config), *kinds)


def _kind_of(field: dataclasses.Field) -> str:
    """ "int", "float", "bool" or "str": the type without the " | str" of an option with `auto`."""
    kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    return kind.removesuffix(" | str")


def flat(config: Any) -> dict[str, Any]:
    """All options of a config by their flat names, parts included: JSON-able where the values are."""
    return {entry.name: functools.reduce(getattr, entry.path, config) for entry in options(config)}


def replace(config: T, **values: Any) -> T:
    """`dataclasses.replace` by flat names.

    Raises:
      TypeError: a name that is not an option.
      ValueError: a value outside its bounds.
    """
    paths = {entry.name: entry.path for entry in options(config)}
    unknown = [name for name in values if name not in paths]
    if unknown:
        raise TypeError(f"{type(config).__name__} has no option {unknown[0]!r}; it has {', '.join(paths)}")
    values = todays(config, values)
    return _replace(config, {paths[name]: (name, value) for name, value in values.items()})


def todays(config: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Flat values as today's versions store them: "auto" for -1, "on" and "off" for booleans; see `option`."""
    entries = {entry.name: entry for entry in options(config)}

    def today(name: str, value: Any) -> Any:
        entry = entries.get(name)
        if entry and entry.auto and value == -1:
            return "auto"
        return ("off", "on")[value] if entry and entry.switch and isinstance(value, bool) else value

    return {name: today(name, value) for name, value in values.items()}


def of_stored(config: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Flat values of a stored run as today's version would store them: those of `todays`, and of options that the run
    did not have yet, what they were before."""
    before = {entry.name: entry.before for entry in options(config) if entry.before is not None}
    return before | todays(config, values)


def _replace(config: Any, values: Mapping[tuple[str, ...], tuple[str, Any]]) -> Any:
    fields = {path[0]: value for path, (_, value) in values.items() if len(path) == 1}
    inner: dict[str, dict] = {}
    for path, named in values.items():
        if len(path) > 1:
            inner.setdefault(path[0], {})[path[1:]] = named
    for field, changed in inner.items():
        try:
            fields[field] = _replace(getattr(config, field), changed)
        except OptionError as error:  # the part speaks of its own field; the option may be called otherwise
            name, _, rest = str(error).partition(" ")
            flat_name = {path[-1]: named[0] for path, named in changed.items()}.get(name, name)
            raise OptionError(f"{flat_name} {rest}") from None
    return dataclasses.replace(config, **fields) if fields else config


def listed(option: str, text: str) -> list[str]:
    """The names in an option that separates them by commas.

    Raises:
      OptionError: one is empty, or stands there twice.
    """
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise OptionError(f"{option} is {text!r}; it must be names separated by commas, each once")
    return names


def make(config_class: type[T], **values: Any) -> T:
    """A config of flat names; what is not named has its default. Errors: see `replace`."""
    return replace(config_class(), **values)


def pick(config_class: type[T], values: Mapping[str, Any]) -> T:
    """A config of those flat values that are its options, such as a stored run's. Errors: see `replace`."""
    names = {entry.name for entry in options(config_class)}
    return make(config_class, **{name: value for name, value in values.items() if name in names})


_NOT_JSON = {"None": "null", "True": "true", "False": "false", "NaN": "null"}


def assignments(name: str, text: str, noun: str = "field") -> dict[str, Any]:
    """`a=1,b=[2,3],c=some words`, or one JSON object, as a mapping. A value that is not JSON is a string.

    Raises:
      OptionError: it cannot be read; the message begins with the option's `name`, and calls `a`, `b` and `c` `left`.
    """
    if text.lstrip().startswith("{"):
        try:
            pairs = _DECODER.decode(text.strip()).items()
        except ValueError as error:
            raise OptionError(f"{name} is {text!r}, which is not a JSON object ({error})") from None
    else:
        pairs = _pairs(name, text.strip(), noun)
    values: dict[str, Any] = {}
    for key, value in pairs:
        if not key.isidentifier():
            raise OptionError(f"{name} is {text!r}; it must be {noun}=value, several separated by commas")
        if key in values:
            raise OptionError(f"{name} is {text!r}, which sets {key} twice; give it once")
        values[key] = value
    return values


def _pairs(name: str, text: str, noun: str) -> list[tuple[str, Any]]:
    pairs, rest = [], text
    while rest:
        key, equals, rest = (part.strip() for part in rest.partition("="))
        if not equals:
            raise OptionError(f"{name} is {text!r}; it must be {noun}=value, several separated by commas")
        try:
            value, end = _DECODER.raw_decode(rest)
            after = rest[end:].lstrip()
            is_json = after[:1] in ("", ",")
        except ValueError:
            is_json = False
        if is_json:
            rest = after[1:].lstrip()
        else:
            value, _, rest = (part.strip() for part in rest.partition(","))
            if value in _NOT_JSON:
                raise OptionError(f"{name} sets {key}={value}; write {key}={_NOT_JSON[value]}")
            if value[:1] in ("{", "[", '"'):
                raise OptionError(f"{name} is {text!r}; the value of {key} is not complete JSON: {value}")
        pairs.append((key, value))
    return pairs


def _finite(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_finite)


def check(config: Any) -> None:
    """Checks every field of a config against its bounds. Call it from `__post_init__`.

    Raises:
      OptionError: a value of another kind, a number out of its bounds, infinite or nan, or a string that is none of the
        choices; the message names the field, the value and what would be right.
    """
    for field in dataclasses.fields(config):
        if "help" in field.metadata:
            value, bounds = getattr(config, field.name), field.metadata
            if not (bounds["auto"] and value == "auto"):
                _check(field.name, _kind_of(field), value, bounds)


def _check(name: str, kind: str, value: Any, bounds: Mapping[str, Any]) -> None:
    wrong_types, expected = _WRONG.get(kind, ((), ""))
    if isinstance(value, wrong_types) and not (kind == "bool" and isinstance(value, bool)):
        raise OptionError(f"{name} is {value!r}; it must be {expected}{' or auto' if bounds['auto'] else ''}")
    if bounds["choices"]:
        if value not in bounds["choices"]:
            listed = ", ".join(repr(choice) if not choice else choice for choice in bounds["choices"])
            raise OptionError(f"{name} is {value!r}; choose one of {listed}")
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    least, most, above, below = (bounds[which] for which in ("least", "most", "above", "below"))
    low, high = LIMITS["int" if kind == "int" else "float"]  # named only where they are broken
    if math.isfinite(value):
        most = high if most is None and below is None and value > high else most
        least = low if least is None and above is None and value < low else least
    expected = [
        text.format(bound)
        for text, bound in (("at least {}", least), ("above {}", above), ("at most {}", most), ("below {}", below))
        if bound is not None
    ]
    holds = (least is None or value >= least) and (most is None or value <= most)
    holds &= (above is None or value > above) and (below is None or value < below)
    if math.isnan(value) or (math.isinf(value) and not bounds["infinite"]) or not holds:
        kind = "a number" if bounds["infinite"] else "a finite number"
        raise OptionError(f"{name} is {value!r}; it must be {' and '.join(expected) or kind}")
