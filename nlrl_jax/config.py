"""Configuration as frozen dataclasses: a field carries its default, its help text and its bounds.

    batch_size: int = option(64, "rows per gradient step", least=1)          # in SFTConfig, which calls `check(self)`

A script's config is made of the library's: `part` holds one as a field, whose options become the script's own, flat and
with other names where the script says so.

    class RunConfig:
        iterations: int = option(700, "iterations", least=1)
        sft: SFTConfig = part(SFTConfig(), names={"max_length": "row_tokens"}, without=("seed",))

    config = make(RunConfig, iterations=5, row_tokens=256)      # flat names in
    flat(config)                                                # {"iterations": 5, "learning_rate": 1e-05, ...}
    replace(config, batch_size=2)                               # the same with another value
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

DTYPES = ("", "float32", "bfloat16")
MOST_SEED = 2**32 - 1  # `jax.random.key` drops all but 32 bits, so larger seeds would be others' doubles


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
) -> Any:
    """A dataclass field with a help text and bounds, which `check` enforces.

    Args:
      least, most: inclusive bounds. above, below: exclusive ones.
      choices: the values a string may have.
      infinite: inf and -inf are allowed; nan never is.
    """
    bounds = {"least": least, "most": most, "above": above, "below": below, "choices": tuple(choices)}
    return dataclasses.field(default=default, metadata={"help": help, "infinite": infinite, **bounds})


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
      without: its fields that are no options and keep the value in `default`.
    """
    return dataclasses.field(
        default_factory=lambda: default,
        metadata={"part": type(default), "names": dict(names or {}), "without": frozenset(without)},
    )


class Option(NamedTuple):
    """One option of a config, parts included.

    name: flat. path: (field,) or (part, ..., field). group: the dataclass that declares it.
    """

    name: str
    path: tuple[str, ...]
    kind: str
    default: Any
    help: str
    group: type


def options(config: Any) -> list[Option]:
    """The options of a config, given as a value or (with its own defaults) as a class. Fields without help are none.

    Raises:
      TypeError: two options of one name.
    """
    found = list(_options(config() if isinstance(config, type) else config))
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TypeError(f"{type(config).__name__} has two options named {', '.join(twice)}")
    return found


def _options(config: Any, path: tuple[str, ...] = (), names: Mapping[str, str] = {}, without=frozenset()) -> Iterator:
    for field in dataclasses.fields(config):
        if field.name in without:
            continue
        value, meta = getattr(config, field.name), field.metadata
        if "part" in meta:
            yield from _options(value, (*path, field.name), meta["names"], meta["without"])
        elif "help" in meta:
            name = names.get(field.name, field.name)
            yield Option(name, (*path, field.name), field.type, value, meta["help"], type(config))


def flat(config: Any) -> dict[str, Any]:
    """All options of a config by their flat names, parts included: JSON-able where the values are."""
    return {one.name: functools.reduce(getattr, one.path, config) for one in options(config)}


def replace(config: T, **values: Any) -> T:
    """`dataclasses.replace` by flat names.

    Raises:
      TypeError: a name that is no option.
      ValueError: a value outside its bounds.
    """
    paths = {one.name: one.path for one in options(config)}
    unknown = [name for name in values if name not in paths]
    if unknown:
        raise TypeError(f"{type(config).__name__} has no option {unknown[0]!r}; it has {', '.join(paths)}")
    return _replace(config, {paths[name]: (name, value) for name, value in values.items()})


def _replace(config: Any, values: Mapping[tuple[str, ...], tuple[str, Any]]) -> Any:
    own = {path[0]: value for path, (_, value) in values.items() if len(path) == 1}
    inner: dict[str, dict] = {}
    for path, named in values.items():
        if len(path) > 1:
            inner.setdefault(path[0], {})[path[1:]] = named
    for field, changed in inner.items():
        try:
            own[field] = _replace(getattr(config, field), changed)
        except OptionError as error:  # the part speaks of its own field; the option may be called otherwise
            name, _, rest = str(error).partition(" ")
            flat_name = {path[-1]: named[0] for path, named in changed.items()}.get(name, name)
            raise OptionError(f"{flat_name} {rest}") from None
    return dataclasses.replace(config, **own) if own else config


def make(config_class: type[T], **values: Any) -> T:
    """A config of flat names; what is not named has its default. Errors: see `replace`."""
    return replace(config_class(), **values)


def check(config: Any) -> None:
    """Checks every field of a config against its bounds. Call it from `__post_init__`.

    Raises:
      OptionError: a number out of its bounds, infinite or nan, or a string that is none of the choices; the message
        names the field, the value and what would be right.
    """
    for field in dataclasses.fields(config):
        if "help" in field.metadata:
            _check(field.name, getattr(config, field.name), field.metadata)


def _check(name: str, value: Any, bounds: Mapping[str, Any]) -> None:
    if bounds["choices"]:
        if value not in bounds["choices"]:
            listed = ", ".join(repr(choice) if not choice else choice for choice in bounds["choices"])
            raise OptionError(f"{name} is {value!r}; choose one of {listed}")
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    least, most, above, below = (bounds[kind] for kind in ("least", "most", "above", "below"))
    wanted = [
        text.format(bound)
        for text, bound in (("at least {}", least), ("above {}", above), ("at most {}", most), ("below {}", below))
        if bound is not None
    ]
    holds = (least is None or value >= least) and (most is None or value <= most)
    holds &= (above is None or value > above) and (below is None or value < below)
    if math.isnan(value) or (math.isinf(value) and not bounds["infinite"]) or not holds:
        kind = "a number" if bounds["infinite"] else "a finite number"
        raise OptionError(f"{name} is {value!r}; it must be {' and '.join(wanted) or kind}")
