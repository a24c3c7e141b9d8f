"""Your own game, named as `my_module:attribute`."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import pathlib
import sysconfig
import traceback
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp

from nlrl_jax.envs import own_host
from nlrl_jax.text.template import Template
from nlrl_jax.types import BoardGame, ControlGame, HostGame, TextGame

PLAYED_BY = {  # kind of game -> the scripts whose --game it may be
    TextGame: "train_ms_grpo, warm_start and evaluate",
    HostGame: "train_ms_grpo, warm_start, evaluate, run_lac, iterate_lac and finetune_lac",
    ControlGame: "reproduce_ultra",
    BoardGame: "train_language_td (breakthrough) and train_language_actor_critic (tic_tac_toe)",
}
STEP = "observation, state, reward, terminated, info"


def load(name: str, *kinds: type, without: tuple[str, ...] = ("prompt",), **options):
    """The game that `module:attribute` names, a value or a function that makes it.

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
        raise ValueError(f"game {name!r}: there is no module {module_name!r} here or on PYTHONPATH") from None
    game, called = getattr(module, attribute, None), False
    if callable(game) and not isinstance(game, tuple(PLAYED_BY)):
        called = True
        with _blamed(name):
            takes = inspect.signature(game).parameters
            anything = any(one.kind is one.VAR_KEYWORD for one in takes.values())
            left = {key for key in without if key not in takes and not anything}
            game = game(**{key: value for key, value in options.items() if key not in left})
    if not isinstance(game, kinds):
        found = ((one.__name__, by) for one, by in PLAYED_BY.items() if isinstance(game, one))
        others = (f"; it is a {one}, a kind that is played by {by}" for one, by in found)
        offered = [key for key, value in vars(module).items() if isinstance(value, kinds) or inspect.isfunction(value)]
        has = next(others, f"; it has {', '.join(offered) or 'no function'}")
        kind = " or ".join(one.__name__ for one in kinds)
        if called and not isinstance(game, tuple(PLAYED_BY)):
            raise ValueError(f"game {name!r}: {attribute}() returned {own_host.shown(game)}; it must return a {kind}")
        raise ValueError(f"game {name!r}: {module_name} has no {kind} named {attribute!r}{has}")
    if isinstance(game, TextGame):
        with _blamed(name):
            _check(game)
    return own_host.checked(game, functools.partial(_blamed, name)) if isinstance(game, HostGame) else game


_FIELDS = {
    **own_host.TEXTS,
    "env": (lambda value: hasattr(value, "reset_env") and hasattr(value, "step_env"), "a gymnax environment"),
    "params": (lambda value: value is not None, "the environment's parameters, such as env.default_params"),
    "actions": (lambda value: own_host.lines(value) and value, "a tuple of strings, such as ('left', 'right')"),
    **{name: (lambda value: isinstance(value, Template), "a Template") for name in ("observation", "board")},
    "fields": (callable, "a function: a state -> a dict of integer arrays"),
    **{name: (lambda value: value is None or callable(value), "a function of a state; None where there is none")
       for name in ("success", "optimal")},
    "max_actions_per_turn": (lambda value: own_host.whole(value, 1), "a whole number of at least 1"),
    "unknown_action": (lambda value: value is None or own_host.whole(value, 0), "an action of the environment or None"),
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
        won = terminated if game.success is None else game.success(after)
        ends = {"terminated": terminated, "is_truncated": game.truncated(after), "success": won}
        fields = game.fields(after)
        if not isinstance(fields, Mapping):
            raise ValueError(f"fields returned {own_host.shown(fields)}; it must be a dict of integer arrays")
        if nothing := [what for what, value in ends.items() if value is None]:
            raise ValueError(f"{nothing[0]} is None; it must be one bool")
        return state, after, fields, {"reward": jnp.asarray(reward), **jax.tree.map(jnp.asarray, ends)}

    own_host.check_fields(game, _FIELDS)
    state, after, fields, ends = jax.eval_shape(step, jax.random.key(0))
    if jax.tree.structure(state) != jax.tree.structure(after):
        raise ValueError("step_env returns a state of another structure than reset_env")
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        if old.shape != new.shape or jnp.promote_types(old.dtype, new.dtype) != old.dtype:
            raise ValueError(f"step_env turns a part of the state, {old.dtype}{old.shape}, into {new.dtype}{new.shape}")
    for what, value in ends.items():
        if value.shape:
            raise ValueError(f"{what} has shape {value.shape}; it must be one value, of shape ()")
    if ends["success"].dtype != bool:
        raise ValueError(f"success gives {ends['success'].dtype}; it must be a bool, such as state.place == state.goal")
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
    """What the user's game raised, and where in its code."""
    house = [str(pathlib.Path(__file__).parents[1] / name) for name in ("envs", "nlrl_jax", "launch")]
    ours = (*house, sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), "<")
    frames = [(one.filename, one.lineno) for one in traceback.extract_tb(error.__traceback__)]
    frames = [one for one in frames if not one[0].startswith(ours)]
    if isinstance(error, SyntaxError):
        frames = [(error.filename, error.lineno)]
    where = "".join(f" ({file}, line {line})" for file, line in frames[-1:])
    said = str(error.args[0] if isinstance(error, KeyError) and error.args and not where else error).partition("\n")[0]
    traced = "; a game's functions are traced by jax.jit" if isinstance(error, jax.errors.JAXTypeError) else ""
    failed = ":" if isinstance(error, (ValueError, KeyError)) and not where else f" failed with {type(error).__name__}:"
    called = f", in {function}," if function and failed != ":" else ""
    return GameError(f"game {name!r}{called}{failed} {said}{traced}{where}")
