"""Command-line flags made from configs (`nlrl_jax.config`), and the text that --help prints."""

from __future__ import annotations

import contextlib
import inspect
import sys
import textwrap
from collections.abc import Mapping
from types import ModuleType
from typing import Any, TypeVar

from absl import flags

from nlrl_jax import config as configs
from nlrl_jax.config import OptionError

T = TypeVar("T")
Presets = Mapping[Any, Mapping[str, Any]]

_PARSERS = {"str": flags.ArgumentParser(), "int": flags.IntegerParser(), "float": flags.FloatParser()}
_IDLE: set[str] = set()  # options that do nothing in this process's command
NOT_OURS = ("absl.", "jax", "orbax", "etils", "chex", "optax", "flax", "tensorflow")


def define(config: type | Any, presets: Presets | None = None, flag: str = "preset", note: str = "") -> None:
    """Defines a flag for every option of a config, grouped by the dataclass that declares it.

    A flag that is not given takes the preset's value, else the config's default.

    Args:
      config: a config class, or a value whose fields are the defaults.
      presets: name -> flat values. flag: the name of the flag that chooses one. note: the end of its help text.
    """
    whole = config if isinstance(config, type) else type(config)
    for entry in configs.options(config):
        text = f"{entry.help} (default: {_shown(entry.default)})"
        if entry.kind == "bool":
            new = flags.BooleanFlag(entry.name, None, text)
        else:
            parser = _AutoParser(entry.kind) if entry.auto else _PARSERS[entry.kind]
            kind = _JoinedFlag if entry.joined else _SwitchFlag if entry.switch else flags.Flag
            new = kind(parser, None, entry.name, None, text)
        title = "Options" if entry.group is whole else _title(entry.group)
        flags.DEFINE_flag(new, module_name=title)
    if presets:
        text = f"sets the defaults of many options at once. {listed(presets)}{note}"
        names = sorted(name for name in presets if name)
        flags.DEFINE_flag(flags.EnumFlag(flag, None, text, names), module_name="Options")


class _NumberParser(flags.FloatParser):
    """A float whose error says what is right; an option in place of the value means that there is none."""

    def convert(self, argument):
        try:
            return super().convert(argument)
        except ValueError:
            raise ValueError(_no_number(argument, "a number")) from None


class _WholeNumberParser(flags.IntegerParser):
    """Also reads whole numbers as Python writes floats: 1e3, 2.0."""

    def convert(self, argument):
        with contextlib.suppress(ValueError):
            return super().convert(argument)
        with contextlib.suppress(ValueError):
            if float(argument).is_integer():
                return int(float(argument))
        raise ValueError(_no_number(argument, "a whole number"))


class _AutoParser(flags.ArgumentParser):
    """A number or "auto", which -1 also means: so earlier versions called it."""

    def __init__(self, kind: str):
        self.number = _WholeNumberParser() if kind == "int" else _NumberParser()

    def parse(self, argument):
        if argument in ("auto", "-1", "-1.0"):
            return "auto"
        try:
            return self.number.parse(argument)
        except ValueError as error:
            raise ValueError(f"{error} or auto") from None


def _no_number(argument: Any, expected: str) -> str:
    missing = str(argument).startswith("--")
    return f"its value is missing; it must be {expected}" if missing else f"it must be {expected}"


def read_whole_numbers(values: flags.FlagValues) -> None:
    """Lets every integer flag, also those of `flags.DEFINE_integer`, read 1e3, and float flags say what is right."""
    for name in values:
        parser = values[name].parser
        if type(parser) is flags.IntegerParser:
            values[name].parser = _WholeNumberParser(parser.lower_bound, parser.upper_bound)
        if type(parser) is flags.FloatParser:
            values[name].parser = _NumberParser(parser.lower_bound, parser.upper_bound)


class _JoinedFlag(flags.Flag):
    """A string that may be given several times; commas join them."""

    def parse(self, argument):
        super().parse(f"{self.value},{argument}" if self.present else argument)


class _SwitchFlag(flags.Flag):
    """A string that `--NAME` alone sets to "on", and `--noNAME` to "off"."""

    def __init__(self, *args):
        super().__init__(*args, boolean=True)

    def parse(self, argument):
        super().parse({"true": "on", "false": "off"}.get(argument, argument))


def join_switches(argv: list[str]) -> list[str]:
    """The command line with `--NAME=on` for `--NAME on`, which absl reads as a lone `--NAME`, and an argument."""
    joined: list[str] = []
    for argument in argv:
        name = joined[-1].lstrip("-") if joined and joined[-1].startswith("-") else ""
        if name in flags.FLAGS and isinstance(flags.FLAGS[name], _SwitchFlag) and not argument.startswith("-"):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def listed(presets: Presets) -> str:
    """Presets as text: "quick: seeds=3, ...; paper: ..."."""
    texts = []
    for preset, values in presets.items():
        if preset and values:
            texts.append(f"{preset}: {', '.join(f'{name}={value}' for name, value in values.items())}")
    return "; ".join(texts)


def parse(
    config: type[T] | T,
    presets: Presets | None = None,
    flag: str = "preset",
    stored: Mapping[str, Any] | None = None,
) -> T:
    """The config that the command line describes. Call it inside `app.run`.

    Without a preset flag the values of `presets[None]` apply, if there are any.

    Args:
      stored: flat values of the run that is resumed; they apply where neither a flag nor a preset is given.

    Raises:
      ValueError: a value outside its bounds.
    """
    _IDLE.clear()
    start = config() if isinstance(config, type) else config
    preset = flags.FLAGS[flag].value if presets else None
    values = dict((presets or {}).get(preset, {}))
    if stored is not None:
        names = {entry.name for entry in configs.options(config)}
        earlier = {name: value for name, value in configs.of_stored(config, stored).items() if name in names}
        values = earlier | (values if preset else {})
    values |= given(config)
    try:
        return configs.replace(start, **values)
    except OptionError as error:
        raise ValueError(f"--{error}") from None


def given(config: type | Any) -> dict[str, Any]:
    """The options given on the command line: flat names and values."""
    values = {entry.name: flags.FLAGS[entry.name].value for entry in configs.options(config)}
    return {name: value for name, value in values.items() if value is not None}


def leave_out(reason: str, *names: str) -> None:
    """Refuses options on the command line that have no effect in combination with the others.

    Args:
      reason: the end of the sentence "--NAME does nothing ...".

    Raises:
      ValueError: names the first of them.
    """
    for name in names:
        if name in flags.FLAGS and flags.FLAGS[name].present:
            raise ValueError(f"--{name} does nothing {reason}; leave it out")
    _IDLE.update(names)


def in_use(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a flat config without those that this command's `leave_out` calls name."""
    return {name: value for name, value in config.items() if name not in _IDLE}


def check_numbers() -> None:
    """Refuses out-of-range numbers in flags that belong to no config, as `configs.check` does for a config's.

    Raises:
      ValueError: an integer that does not fit 32 bits, or a number that is not finite.
    """
    for place, group in flags.FLAGS.flags_by_module_dict().items():
        for flag in () if place.startswith(NOT_OURS) else group:
            low, high = configs.LIMITS["int" if isinstance(flag.value, int) else "float"]
            is_number = type(flag.value) in (int, float) and flag.default is not None
            if is_number and not low <= flag.value <= high:
                expected = f"at least {low} and at most {high}" if isinstance(flag.value, int) else "a finite number"
                raise ValueError(f"--{flag.name} is {flag.value!r}; it must be {expected}")


def help_text(module: ModuleType) -> str:
    """What `--help` prints: the script's docstring, then its options in groups, without those of absl and libraries."""
    lines = [inspect.cleandoc(module.__doc__ or ""), ""]
    by_place = flags.FLAGS.flags_by_module_dict()
    own_places = [place for place in by_place if place == sys.argv[0] or place in (module.__name__, "__main__")]
    groups = {"Options": [flag for place in own_places for flag in by_place[place]]}
    for place, group in by_place.items():
        if place not in own_places and not place.startswith(NOT_OURS):
            title = "Run" if place.startswith("nlrl_jax.run") else place
            groups[title] = [*groups.get(title, []), *group]
    for title, group in groups.items():
        if group:
            lines += [f"{title}:", *(_described(flag) for flag in group), ""]
    lines.append("--helpfull also lists the options of absl and of the libraries.")
    return "\n".join(lines)


def _described(flag: flags.Flag) -> str:
    name = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}"
    text = flag.help or ""
    if flag.default not in (None, "", []) and "(default:" not in text:
        text += f" (default: {_shown(flag.default)})"
    indent = " " * 26
    body = textwrap.fill(text, 112, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    head = f"  {name}"
    return head + body[len(head) :] if len(head) < len(indent) else f"{head}\n{body}"


def _shown(value: Any) -> str:
    if value == "":
        return "empty"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _title(group: type) -> str:
    first = (group.__doc__ or group.__name__).strip().splitlines()[0]
    return first.rstrip(".:")
