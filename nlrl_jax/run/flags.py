"""absl flags out of a frozen dataclass: one place says what exists, what it means and its default."""

from __future__ import annotations

import dataclasses
from typing import Any

from absl import flags


def define(
    config_class: type, presets: dict[str, dict[str, Any]] | None = None, flag: str = "preset", note: str = ""
) -> None:
    """Defines a flag for every field of `config_class`, and `--preset` (or what `flag` says) if there are presets.

    A flag that is not given takes the preset's value, else the dataclass's default. `note` ends the help on presets.
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
        told = f"other defaults for many flags at once. {listed(presets)}{note}"
        flags.DEFINE_enum(flag, None, sorted(presets), told)


def listed(presets: dict[str, dict[str, Any]]) -> str:
    """Presets in words."""
    return "; ".join(f"{name}: {', '.join(f'{k}={v}' for k, v in values.items())}" for name, values in presets.items())


def parse(config_class: type, presets: dict[str, dict[str, Any]] | None = None, flag: str = "preset") -> Any:
    """The config of the flags as they were given. Call it inside `app.run`.

    Without a preset flag the values of `presets[None]` hold, if there are such.
    """
    given = {f.name: flags.FLAGS[f.name].value for f in dataclasses.fields(config_class)}
    values = dict((presets or {}).get(flags.FLAGS[flag].value, {})) if presets else {}
    values |= {name: value for name, value in given.items() if value is not None}
    return config_class(**values)
