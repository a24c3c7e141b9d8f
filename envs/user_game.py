"""Your own game, named as `my_module:attribute`."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import pathlib
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp

from nlrl_jax.envs import outside, user_host_game
from nlrl_jax.envs.code_location import code_location
from nlrl_jax.envs.outside import classes
from nlrl_jax.text.template import Template
from nlrl_jax.types import BoardGame, ControlGame, HostGame, TextGame

PLAYED_BY = {  # kind of game -> the scripts whose --game it may be
    TextGame: "train_ms_grpo, warm_start and evaluate",
    HostGame: "train_ms_grpo, warm_start, evaluate, run_lac, iterate_lac and finetune_lac",
    ControlGame: "reproduce_ultra",
    BoardGame: "train_language_td (breakthrough) and train_language_actor_critic (tic_tac_toe)",
}
# What a name of another package's environment may begin with -> its scheme.
_SCHEMES_MEANT = {**{scheme: scheme for scheme in outside.SCHEMES}, "gym": "gymnasium", "ta": "textarena"}
STEP = "observation, state, reward, terminated, info"


def load(name: str, *kinds: type, without: tuple[str, ...] = ("prompt",), **options):
    """Loads the game that `module:attribute` names, a value or a function that makes it.

    Args:
      *kinds: what it may be.
      without: options that are left out where the function does not take them.

    Raises:
      ValueError: there is none, it is of another kind, or its own code fails; says where.
    """
    module_name, _, attribute = name.partition(":")
    dotted = ".".join(pathlib.PurePath(module_name.removesuffix(".py")).parts)
    if not all(part.isidentifier() for part in module_name.split(".")) or module_name != dotted or not attribute:
        right = f"{dotted or 'my_module'}:{attribute or 'text_game'}"
        raise ValueError(f"game {name!r}: write the module as Python imports it and a name in it, {right}")
    try:
        with _blamed(name):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # a module that the game's own module imports
        scheme = _SCHEMES_MEANT.get(module_name.lower(), "")
        hint = f"; did you mean {scheme}:{attribute}?" if scheme else ""
        raise ValueError(f"game {name!r}: there is no module {module_name!r} here or on PYTHONPATH{hint}") from None
    game, called = getattr(module, attribute, None), False
    if HostGame in kinds and inspect.isclass(game) and classes.is_environment(game):
        with _blamed(name):
            return classes.host_game(name, game, **{key: value for key, value in options.items() if key != "prompt"})
    if callable(game) and not isinstance(game, tuple(PLAYED_BY)):
        called = True
        with _blamed(name):
            parameters = inspect.signature(game).parameters
            takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
            left_out = {key for key in without if key not in parameters and not takes_any}
            maker = game
            game = maker(**{key: value for key, value in options.items() if key not in left_out})
            if HostGame in kinds and classes.is_environment(game):
                return classes.host_game(name, maker, **{key: options[key] for key in options if key not in left_out})
    if not isinstance(game, kinds):
        raise _another_kind(name, game, kinds, module, called)
    if isinstance(game, TextGame):
        with _blamed(name):
            _check(game)
    return user_host_game.checked(game, functools.partial(_blamed, name)) if isinstance(game, HostGame) else game


def _another_kind(name: str, game, kinds: tuple[type, ...], module, called: bool) -> ValueError:
    """The error where `name` is no game of these kinds; `called`: `game` is what its function returned."""
    module_name, _, attribute = name.partition(":")
    expected = " or ".join(kind.__name__ for kind in kinds)
    for kind, scripts in PLAYED_BY.items():
        if isinstance(game, kind):
            hint = f"; it is a {kind.__name__}, a kind that is played by {scripts}"
            return ValueError(f"game {name!r}: {module_name} has no {expected} named {attribute!r}{hint}")
    if classes.is_environment(game) and not called:
        hint = f"name its class, {module_name}:{type(game).__name__}, of which each episode has an instance of its own"
        return ValueError(f"game {name!r}: {module_name} has no {expected} named {attribute!r}; {hint}")
    if called:
        returned = user_host_game.shown(game)
        return ValueError(f"game {name!r}: {attribute}() returned {returned}; it must return a {expected}")
    offered = [key for key, value in vars(module).items() if _may_be_meant(value, kinds, module)]
    hint = f"; it has {', '.join(offered) or 'no function'}"
    return ValueError(f"game {name!r}: {module_name} has no {expected} named {attribute!r}{hint}")


def _may_be_meant(value, kinds: tuple[type, ...], module) -> bool:
    """Whether a value of the user's module is a game of these kinds, or could make one."""
    is_class = HostGame in kinds and inspect.isclass(value) and value.__module__ == module.__name__
    return isinstance(value, kinds) or inspect.isfunction(value) or is_class and classes.is_environment(value)


_FIELDS = {
    **user_host_game.TEXTS,
    "env": (lambda value: hasattr(value, "reset_env") and hasattr(value, "step_env"), "a gymnax environment"),
    "params": (lambda value: value is not None, "the environment's parameters, such as env.default_params"),
    "actions": (lambda value: user_host_game.lines(value) and value, "a tuple of strings, such as ('left', 'right')"),
    **{name: (lambda value: isinstance(value, Template), "a Template") for name in ("observation", "board")},
    "fields": (callable, "a function: a state -> a dict of integer arrays"),
    **{name: (lambda value: value is None or callable(value), "a function of a state; None where there is none")
       for name in ("success", "optimal")},
    "max_actions_per_turn": (lambda value: user_host_game.whole(value, 1), "a whole number of at least 1"),
    "unknown_action": (
        lambda value: value is None or user_host_game.whole(value, 0), "an action of the environment or None"
    ),
}  # fmt: skip


def _check(game: TextGame) -> None:
    """Looks at a text game's fields, and at what one step gives, traced, without computing anything.

    Raises:
      ValueError: a field of another type, a state that changes its shape, a reward or end that is not a number, more
        action words than actions.
      Exception: what the game's own code raises, and `Template.check`.
    """

    def step(key):
        _, state = game.env.reset_env(key, game.params)
        returned = game.env.step_env(key, state, jnp.int32(0), game.params)
        if len(returned) != 5:
            raise ValueError(f"step_env returns {len(returned)} values; it must be 5: {STEP}")
        _, after, reward, terminated, _ = returned
        success = terminated if game.success is None else game.success(after)
        values = {"terminated": terminated, "is_truncated": game.truncated(after), "success": success}
        fields = game.fields(after)
        if not isinstance(fields, Mapping):
            raise ValueError(f"fields returned {user_host_game.shown(fields)}; it must be a dict of integer arrays")
        if missing := [name for name, value in values.items() if value is None]:
            raise ValueError(f"{missing[0]} is None; it must be one bool")
        return state, after, fields, {"reward": jnp.asarray(reward), **jax.tree.map(jnp.asarray, values)}

    user_host_game.check_fields(game, _FIELDS)
    state, after, fields, values = jax.eval_shape(step, jax.random.key(0))
    if jax.tree.structure(state) != jax.tree.structure(after):
        raise ValueError("step_env returns a state of another structure than reset_env")
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        if old.shape != new.shape or jnp.promote_types(old.dtype, new.dtype) != old.dtype:
            raise ValueError(f"step_env turns a part of the state, {old.dtype}{old.shape}, into {new.dtype}{new.shape}")
    for name, value in values.items():
        if value.shape:
            raise ValueError(f"{name} has shape {value.shape}; it must be one value, of shape ()")
    if values["success"].dtype != bool:
        raise ValueError(
            f"success gives {values['success'].dtype}; it must be a bool, such as state.place == state.goal"
        )
    for template in (game.observation, game.board):
        template.check(fields)
    try:
        number = int(game.env.num_actions)
    except (AttributeError, NotImplementedError):
        return
    if len(game.actions) > number:
        raise ValueError(
            f"it has {len(game.actions)} action words, and its environment {number} actions: {game.actions}"
        )


@contextlib.contextmanager
def _blamed(name: str, function: str = "") -> Iterator[None]:
    """Says where in the user's code, in which function, an error comes from; a missing module speaks for itself."""
    try:
        yield
    except (ModuleNotFoundError, GameError):
        raise
    except (Exception, SystemExit) as error:
        raise _broken(name, error, function) from error


class GameError(ValueError):
    """A sentence on what is wrong with a game of the user's."""


def _broken(name: str, error: BaseException, function: str = "") -> ValueError:
    """Describes what the user's game raised, and where in its code."""
    location = code_location(error)
    # An error of ours (it comes from no line of the user's) is a sentence already.
    is_sentence = isinstance(error, (ValueError, KeyError)) and not location
    cause = error.args[0] if is_sentence and isinstance(error, KeyError) and error.args else error  # unquoted
    message = str(cause).partition("\n")[0]
    failed = ":" if is_sentence else f" failed with {type(error).__name__}:"
    traced = "; a game's functions are traced by jax.jit" if isinstance(error, jax.errors.JAXTypeError) else ""
    called = f", in {function}," if function and not is_sentence else ""
    return GameError(f"game {name!r}{called}{failed} {message}{traced}{location}")
