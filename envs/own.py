"""A game of one's own, named as `my_module:attribute`."""

from __future__ import annotations

import importlib
import inspect
import pathlib
import traceback

from nlrl_jax.types import BoardGame, ControlGame, HostGame, TextGame

PLAYED_BY = {  # kind of game -> the scripts whose --game it may be
    TextGame: "train_ms_grpo, warm_start and evaluate",
    HostGame: "run_lac, iterate_lac and finetune_lac",
    ControlGame: "reproduce_ultra",
    BoardGame: "train_language_td (breakthrough) and train_language_actor_critic (tic_tac_toe)",
}


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
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # a module that the game's own module imports
        raise ValueError(f"game {name!r}: there is no module {module_name!r} here or on PYTHONPATH") from None
    except Exception as error:
        raise _broken(name, error) from error
    game = getattr(module, attribute, None)
    if callable(game) and not isinstance(game, tuple(PLAYED_BY)):
        try:
            takes = inspect.signature(game).parameters
            anything = any(one.kind is one.VAR_KEYWORD for one in takes.values())
            left = {key for key in without if key not in takes and not anything}
            game = game(**{key: value for key, value in options.items() if key not in left})
        except ModuleNotFoundError:
            raise
        except Exception as error:
            raise _broken(name, error) from error
    if not isinstance(game, kinds):
        found = ((one.__name__, by) for one, by in PLAYED_BY.items() if isinstance(game, one))
        others = (f"; it is a {one}, which {by} play" for one, by in found)
        offered = [key for key, value in vars(module).items() if isinstance(value, kinds) or inspect.isfunction(value)]
        has = next(others, f"; it has {', '.join(offered) or 'no function'}")
        kind = " or ".join(one.__name__ for one in kinds)
        raise ValueError(f"game {name!r}: {module_name} has no {kind} named {attribute!r}{has}")
    return game


def _broken(name: str, error: Exception) -> ValueError:
    """What one's own game raised, and where."""
    if isinstance(error, SyntaxError):
        where = f"{error.filename}, line {error.lineno}"
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}, line {last.lineno}"
    return ValueError(f"game {name!r} failed with {type(error).__name__}: {error} ({where})")
