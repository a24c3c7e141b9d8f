"""Environments of other packages by name: `scheme:name`, with options as in an address.

    envs.make_host("gymnasium:FrozenLake-v1?map_name=8x8&is_slippery=False")
    envs.make_host("textarena:TicTacToe-v0?opponent=my_module:reply")

Each scheme has a module here with `host_game(name, max_steps, **options)`; options that it does not know are the
environment's own. No package is imported before one of its environments is made.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from nlrl_jax.text import generators
from nlrl_jax.types import HostGame


class Scheme(NamedTuple):
    """What stands before the colon of a name.

    module: that makes its games. package: that must be importable. command: that installs it.
    """

    module: str
    package: str
    command: str


SCHEMES = {
    "gem": Scheme("gem_games", "gem", "pip install 'nlrl_jax[gem]', then pip install --no-deps gem-llm==0.1.0"),
    "textarena": Scheme("textarena_games", "textarena", "pip install 'nlrl_jax[textarena]'"),
    "gymnasium": Scheme("gymnasium_games", "gymnasium", "pip install 'nlrl_jax[gymnasium]'"),
    "openenv": Scheme("openenv_server", "websockets", "pip install 'nlrl_jax[openenv]'"),
}
HELP = (
    "gem:game:GuessTheNumber-v0-easy, textarena:GuessTheNumber-v0, gymnasium:FrozenLake-v1, "
    "openenv:http://127.0.0.1:8000"
)


def is_outside(name: str) -> bool:
    """Whether a name is one of another package's environments."""
    return name.partition(":")[0] in SCHEMES


def make(name: str, max_steps: int = 0, **options) -> HostGame:
    """Makes the host game of another package's environment.

    Args:
      name: `scheme:name`.
      max_steps: horizon; 0 is the environment's own.
      **options: of the scheme's module, and of the environment.

    Raises:
      ValueError: the package is not installed, or cannot be on this Python; what the environment raises.
    """
    scheme_name, _, rest = name.partition(":")
    scheme = SCHEMES[scheme_name]
    if importlib.util.find_spec(scheme.package) is None:
        raise ValueError(f"{name} needs the package {scheme.package}: {scheme.command}")
    try:
        with logging_as_before(), generators.preserved():
            module = importlib.import_module(f"{__name__}.{scheme.module}")
            return module.host_game(rest, max_steps, **options)
    except ModuleNotFoundError as error:
        command = scheme.command if error.name == scheme.package else f"pip install {error.name}"
        raise ValueError(f"{name} needs the package {error.name}: {command}") from None
    except ValueError as error:
        raise ValueError(f"game {name!r}: {error}") from None
    except Exception as error:  # whatever another package's code raises
        raise ValueError(f"game {name!r}: {_reason(error)}") from error


def split_options(name: str) -> tuple[str, dict[str, Any]]:
    """Splits `name?option=value&...` into the name and its options; values are read as Python writes them, or as text.

    Raises:
      ValueError: an option without a value.
    """
    name, _, query = name.partition("?")
    pairs = [pair.partition("=") for pair in query.split("&")] if query else []
    if bare := [option for option, equals, _ in pairs if not (option.isidentifier() and equals)]:
        raise ValueError(f"{name}: {bare[0]!r} is no option; write {name}?option=value&option=value")
    return name, {option: _value(text) for option, _, text in pairs}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def function_named(text: str, option: str) -> Callable:
    """Imports the function that `module:function` names.

    Raises:
      ValueError: there is none.
    """
    module, _, attribute = str(text).partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        raise ValueError(f"{option}={text}: {error}; write my_module:function") from None
    if not callable(function):
        raise ValueError(f"{option}={text} is a {type(function).__name__}, not a function")
    return function


def accepted(function: Callable, options: dict[str, Any]) -> dict[str, Any]:
    """Returns those of the options that a function takes."""
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in options.items() if takes_any or name in parameters}


def _reason(error: Exception) -> str:
    """Says in a line why an environment could not be made."""
    text = re.sub(r"\x1b\[\d+m", "", str(error))  # colours
    if data := re.search(r"Resource (\w+) not found", text):  # NLTK's page of advice
        return f"it needs NLTK's data {data[1]!r}: python -m nltk.downloader {data[1]}"
    return f"{type(error).__name__}: {' '.join(text.split())}"


@contextlib.contextmanager
def logging_as_before() -> Iterator[None]:
    """Restores the root logger, which some packages set up for the whole process when they are imported."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
