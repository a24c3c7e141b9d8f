"""Your own host game: what its fields hold and its functions return, said in a sentence where that is not right.

The fields are looked at, then a few steps are played, before any model is loaded; what the functions return is looked
at in each call.
"""

from __future__ import annotations

import dataclasses
import numbers
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from nlrl_jax.envs.restorable import NOTHING, first_move, walk
from nlrl_jax.roles.dialogues import History
from nlrl_jax.roles.json_reply import folded
from nlrl_jax.text import generators
from nlrl_jax.types import HostGame, Outcome, Start

Task = tuple[str, int]
_SHOWN = 60  # characters of a value in a message
_KINDS = 16  # whose first task is begun


def checked(game: HostGame, blamed: Callable[[str], AbstractContextManager]) -> HostGame:
    """Wraps a game's functions so that their results are checked.

    Episodes of a game that uses Python's or NumPy's global generator get generators of their own (`text.generators`).

    Args:
      blamed: (name of a function) -> within it, errors become a sentence that names the game.

    Raises:
      ValueError: what is wrong with a field, or with what a function returns on the first steps.
    """
    with blamed(""):
        _check_fields(game)
    game = _watched(game, blamed)
    with blamed(""):
        task = (game.kinds[0], 0)
        if generators.are_used(lambda: walk(game, *game.reset([task]))):
            game = generators.apart(game)
        _try(game)
    return game


def shown(value: Any) -> str:
    """Shows a value and its type, in a line."""
    text = " ".join(repr(value).split())
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return text if value is None else f"{text} of type {type(value).__name__}"


def whole(value: Any, minimum: int) -> bool:
    return isinstance(value, numbers.Integral) and value >= minimum and not isinstance(value, bool)


def lines(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(line, str) for line in value)


TEXTS = {
    "name": (lambda value: isinstance(value, str) and value.strip(), "a string that is not empty"),
    "rules": (lambda value: isinstance(value, str), "a string: the game and its actions in words"),
    "legend": (lambda value: isinstance(value, Mapping), "a dict: character on boards -> meaning"),
}


def check_fields(game: Any, rules: Mapping[str, tuple[Callable[[Any], Any], str]]) -> None:
    """Raises ValueError: names the field, the value and what would be right.

    Args:
      rules: field -> (whether a value is right, what would be). Actions are looked at one by one besides.
    """
    for field, (holds, right) in rules.items():
        if not holds(value := getattr(game, field)):
            raise ValueError(f"{field} is {shown(value)}; it must be {right}")
    for action in game.actions:
        _line(action, "an action in `actions`")
    words = [folded(action).strip() for action in game.actions]
    if twice := [word for i, word in enumerate(words) if word in words[:i]]:
        raise ValueError(f"actions has {twice[0]!r} more than once (capitals do not count); name each action once")


def _are_limits(value: Any) -> bool:
    return isinstance(value, Mapping) and all(whole(number, 1) for number in value.values())


def _are_tools(value: Any) -> bool:
    if not isinstance(value, tuple):
        return False
    functions = [tool.get("function") if isinstance(tool, Mapping) else None for tool in value]
    return all(isinstance(function, Mapping) and function.get("name") for function in functions)


def _check_fields(game: HostGame) -> None:
    """Raises ValueError: names the field, the value and what would be right."""
    optional = "; None where there is none"
    rules = {
        **TEXTS,
        "actions": (lines, "a tuple of strings, such as ('left', 'right'); () where any text is an action"),
        "max_steps": (lambda value: whole(value, 1), "a whole number of at least 1"),
        "kinds": (
            lambda value: lines(value) and value and len(set(value)) == len(value),
            "a tuple of different strings, such as ('easy', 'hard'); ('',) where all tasks are of one kind",
        ),
        "reset": (callable, "a function: tasks -> a list of Start"),
        "step": (callable, "a function: (states, actions) -> a list of Outcome"),
        **{name: (lambda value: value is None or callable(value), f"a function of a state{optional}")
           for name in generators.OF_STATES},
        "examples": (lambda value: value is None or callable(value), f"a function of a label and a number{optional}"),
        "score": (lambda value: isinstance(value, str), "a string: the reward's name in tables, or ''"),
        **{name: (lambda value: isinstance(value, bool), "True or False") for name in ("reversible", "has_success")},
        "history": (lambda value: whole(value, 0), "a whole number of at least 0"),
        "simulator": (lambda value: value is None or isinstance(value, HostGame), "a HostGame or None"),
        "limits": (_are_limits, "a dict: kind -> number of its tasks, at least 1"),
        "read_action": (
            lambda value: value is None or callable(value), f"a function: a reply's text -> its action{optional}"
        ),
        "reply_form": (lambda value: isinstance(value, str), "a string: the form in which a reply holds its action"),
        "tools": (_are_tools, 'a tuple of JSON schemas, {"type": "function", "function": {"name": ..., ...}}'),
    }  # fmt: skip
    check_fields(game, rules)
    if unknown := [kind for kind in game.limits if kind not in game.kinds]:
        raise ValueError(f"limits has {unknown[0]!r}, which is none of the kinds: {', '.join(map(repr, game.kinds))}")


def _watched(game: HostGame, blamed: Callable[[str], AbstractContextManager]) -> HostGame:
    """Wraps each function so that its result is checked; see `checked`."""

    def reset(tasks: Sequence[Task]) -> list[Start]:
        with blamed("reset"):
            starts = _list(game.reset(tasks), "reset", Start, len(tasks), "task")
            for start in starts:
                _text(start.goal, "a Start's goal")
                _text(start.observation, "a Start's observation")
            return [Start(start.state, str(start.goal), str(start.observation)) for start in starts]

    def step(states: Sequence[Any], actions: Sequence[str]) -> list[Outcome]:
        with blamed("step"):
            outcomes = _list(game.step(states, actions), "step", Outcome, len(states), "state and action")
            return [_outcome(*pair) for pair in zip(outcomes, actions, strict=True)]

    def examples(label: str, number: int) -> tuple[History, ...]:
        with blamed("examples"):
            histories = game.examples(label, number)
            return tuple(_list(histories, "examples", History, None, ""))

    def read_action(text: str) -> str | None:
        with blamed("read_action"):
            action = game.read_action(text)
            return action if action is None else _text(action, "what read_action returned")

    readers = {
        "board": _text,
        "optimal": _optimal,
        "expert": _expert(game.actions),
        "commands": _commands,
        "closing_reward": _number,
    }

    def watched(name):
        def of_state(state):
            with blamed(name):
                return readers[name](getattr(game, name)(state), name)

        return of_state

    functions = {name: watched(name) for name in readers if getattr(game, name)}
    functions |= {"examples": examples} if game.examples else {}
    functions |= {"read_action": read_action} if game.read_action else {}
    functions |= {"simulator": checked(game.simulator, blamed)} if game.simulator else {}
    return dataclasses.replace(game, reset=reset, step=step, **functions)


def _list(value: Any, function: str, kind: type, number: int | None, each: str) -> list:
    """Checks that a function returned a list of such values; number: how many, None for any."""
    fields = f"({', '.join(kind._fields)})" if hasattr(kind, "_fields") else ""
    right = f"a list of {kind.__name__}{fields}" + (f", one for each {each}" if each else "")
    if isinstance(value, kind) or not isinstance(value, list | tuple):
        raise ValueError(f"{function} returned {shown(value)}; it must be {right}")
    if number is not None and len(value) != number:
        raise ValueError(f"{function} returned {len(value)} values for {number}; it must be {right}")
    if wrong := [element for element in value if not isinstance(element, kind)]:
        raise ValueError(f"{function} returned a list with {shown(wrong[0])}; it must be {right}")
    return list(value)


def _outcome(outcome: Outcome, action: str) -> Outcome:
    """Checks an outcome's fields and converts them to Python's types; errors tell the action."""
    try:
        text = _text(outcome.observation, "an Outcome's observation")
        flags = [_flag(getattr(outcome, name), f"an Outcome's {name}") for name in ("done", "success", "valid", "idle")]
        reward = _number(outcome.reward, "an Outcome's reward")
        error = _text(outcome.error, "an Outcome's error")
        return Outcome(outcome.state, text, reward, *flags[:3], error, flags[3])
    except ValueError as error:
        raise ValueError(f"{error} (after the action {shown(action)})") from None


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {shown(value)}; it must be a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} is {shown(value)}, with half of a character (a lone surrogate)") from None
    return str(value)


def _line(value: Any, name: str) -> str:
    text = _text(value, name)
    if not text.strip() or len(text.splitlines()) > 1:
        raise ValueError(f"{name} is {shown(value)}; it must be one line that is not empty")
    return text


def _number(value: Any, name: str) -> float:
    array = np.asarray(value)
    if array.shape or array.dtype.kind not in "biuf" and not isinstance(value, numbers.Real):
        raise ValueError(f"{name} is {shown(value)}; it must be one number")
    if not np.isfinite(float(value)):
        raise ValueError(f"{name} is {shown(value)}; it must be a finite number")
    return float(value)


def _flag(value: Any, name: str) -> bool:
    array = np.asarray(value)
    if array.shape or array.dtype.kind not in "biu" or value not in (0, 1):
        raise ValueError(f"{name} is {shown(value)}; it must be True or False")
    return bool(value)


def _optimal(value: Any, name: str) -> int:
    """Checks a minimum number of actions; -1 for None."""
    number = -1.0 if value is None else _number(value, name)
    if number != int(number):
        raise ValueError(f"{name} is {shown(value)}; it must be a whole number of actions, or None")
    return int(number)


def _expert(actions: tuple[str, ...]) -> Callable[[Any, str], str]:
    def read(value: Any, name: str) -> str:
        line = _line(value, f"what {name} returned")
        if actions and line not in actions:
            raise ValueError(f"{name} returned {shown(value)}, which is none of the actions: {', '.join(actions)}")
        return line

    return read


def _commands(value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{name} returned {shown(value)}; it must be a list of strings")
    return tuple(_line(command, f"a line of {name}") for command in value)


def _try(game: HostGame) -> None:
    """Begins a task of each kind and plays a few steps of the first.

    Raises:
      ValueError: from `_watched`; one object is the state of two tasks; an episode cannot be repeated.
    """
    tasks = [(game.kinds[0], 1), *((kind, 0) for kind in game.kinds[:_KINDS])]
    starts = game.reset(tasks)
    if game.examples:
        game.examples("", 1)
    if game.read_action:
        game.read_action("I do not know.")
    for name in generators.OF_STATES:
        if function := getattr(game, name):
            function(starts[1].state)
    before = starts[1].state
    after = game.step([start.state for start in starts[:2]], [first_move(game, before), NOTHING])[1].state
    first, second = (getattr(state, "state", state) for state in (starts[0].state, before))
    is_live = getattr(after, "state", after) is second and not isinstance(second, str | int | float | tuple | frozenset)
    if first is second and is_live and second is not None:
        raise ValueError(f"reset gave two tasks one state, {shown(first)}, which step changes; make one for each task")
    # A reversible game is stepped twice from one start, another one begins twice.
    task = tasks[1]
    (start,) = game.reset([task])
    first = walk(game, start)
    second = walk(game, start if game.reversible else game.reset([task])[0])
    if first != second:
        old, new = next(pair for pair in zip([*first, "an end"], [*second, "an end"]) if pair[0] != pair[1])
        if game.reversible:
            raise ValueError(
                "reversible is True, but the same state, stepped twice with the same actions, led to "
                f"{shown(old)} and to {shown(new)}; set it to False, or let `step` leave the old state as it is"
            )
        print(
            f"warning: {game.name}: the task {task} was played twice with the same actions and led to {shown(old)} "
            f"and to {shown(new)}; let everything random follow from its seed, else a resumed run is not the same run",
            file=sys.stderr,
        )
