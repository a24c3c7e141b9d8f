"""absl flags out of a frozen dataclass: one place says what exists, what it means and its default."""

from __future__ import annotations

import dataclasses
from typing import Any

from absl import flags


def option(default: Any, help: str) -> Any:
    """A dataclass field with a help text."""
    return dataclasses.field(default=default, metadata={"help": help})


def define(config_class: type, presets: dict[str, dict[str, Any]] | None = None, flag: str = "preset") -> None:
    """Defines a flag for every field of `config_class`, and `--preset` (or what `flag` says) if there are presets.

    A flag that is not given takes the preset's value, else the dataclass's default.
    """
    kinds = {
        "str": flags.DEFINE_string,
        "int": flags.DEFINE_integer,
        "float": flags.DEFINE_float,
        "bool": flags.DEFINE_boolean,
    }
    for field in dataclasses.fields(config_class):
        kinds[field.type](field.name, None, f"{field.metadata['help']} (default: {field.default!r})")
    if presets:
        lines = [f"{name}: {', '.join(f'{k}={v}' for k, v in values.items())}" for name, values in presets.items()]
        flags.DEFINE_enum(flag, None, sorted(presets), "other defaults for many flags at once. " + "; ".join(lines))


def parse(config_class: type, presets: dict[str, dict[str, Any]] | None = None, flag: str = "preset") -> Any:
    """The config of the flags as they were given. Call it inside `app.run`."""
    given = {f.name: flags.FLAGS[f.name].value for f in dataclasses.fields(config_class)}
    values = dict((presets or {}).get(flags.FLAGS[flag].value, {})) if presets else {}
    values |= {name: value for name, value in given.items() if value is not None}
    return config_class(**values)
