"""Games by name: `make(name)` is a `TextGame`, `make_board` makes a `BoardGame`, `make_control` a `ControlGame` and
`make_host` a `HostGame`.

Nothing heavy is imported until a game is made (gymnax alone takes half a second to import).
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import importlib
import inspect
import pathlib
from typing import Any

from nlrl_jax.envs import mixture, outside, restorable, user_game, workers
from nlrl_jax.envs.options import integer
from nlrl_jax.types import BoardGame, ControlGame, HostGame, TextGame

if __name__ == "envs":
    from nlrl_jax import old_names

    old_names.alias(__name__)

# Name -> (module, the options that the name settles). The module's function has the name in `_FUNCTIONS`.
_TEXT = {
    "frozen_lake": ("nlrl_jax.envs.frozen_lake", {"slippery": False}),
    "frozen_lake_slippery": ("nlrl_jax.envs.frozen_lake", {"slippery": True}),
    "snake": ("nlrl_jax.envs.snake", {"poison": False}),
    "snake_poison": ("nlrl_jax.envs.snake", {"poison": True}),
    "maze_double_t": ("nlrl_jax.envs.maze.env", {"layout": "double_t"}),
    "maze_medium": ("nlrl_jax.envs.maze.env", {"layout": "medium"}),
    "tic_tac_toe": ("nlrl_jax.envs.tic_tac_toe.env", {}),
    "tic_tac_toe_first_move": ("nlrl_jax.envs.tic_tac_toe.env", {"opponent": "first_move"}),
    "tic_tac_toe_minimax": ("nlrl_jax.envs.tic_tac_toe.env", {"opponent": "minimax"}),
    "breakthrough": ("nlrl_jax.envs.breakthrough.env", {}),
    "breakthrough_first_move": ("nlrl_jax.envs.breakthrough.env", {"opponent": "first_move"}),
    "babyai": ("nlrl_jax.envs.babyai.env", {}),
    "crafter": ("nlrl_jax.envs.crafter.env", {}),
}
_BOARD = {
    "tic_tac_toe": ("nlrl_jax.envs.tic_tac_toe.rules", {}),
    "breakthrough": ("nlrl_jax.envs.breakthrough.rules", {}),
}
_CONTROL = {
    "pong": ("nlrl_jax.envs.pong.env", {}),
    **{robot: ("nlrl_jax.envs.locomotion.env", {"name": robot}) for robot in ("hopper", "walker2d", "ant")},
}
_HOST = {name: (f"nlrl_jax.envs.{name}.host", {}) for name in ("babyai", "crafter", "alfworld", "webshop")}
_FUNCTIONS = {TextGame: "text_game", BoardGame: "board_game", ControlGame: "control_game", HostGame: "host_game"}

GAMES, BOARD_GAMES, CONTROL_GAMES = tuple(_TEXT), tuple(_BOARD), tuple(_CONTROL)
IN_TRANSCRIPTS = tuple(_HOST)  # games that are made to be played in transcripts
HOST_GAMES = (*_HOST, *(name for name in GAMES if name not in _HOST))
GRID_GAMES = tuple(name for name in GAMES if name not in _HOST)  # whose observations are a grid [H, W, C]
OTHER_HELP = (
    f"another package's, such as {outside.HELP}, or your own as my_module:host_game, text_game or MyEnvironment; "
    "several, as in a,b,c, are mixed"
)
HOST_HELP = f"the game: {', '.join(HOST_GAMES)}, {OTHER_HELP}"
WITH_MAPS = ("frozen_lake", "frozen_lake_slippery")  # take `maps`: all, train or held_out
READ_BY = {"babyai": "nano_babyai"}  # built-in models that have learned its transcripts
RECORDED = ("alfworld", "webshop", "crafter")  # games whose trajectories lie in the package
DEMONSTRATED = ("babyai", *RECORDED)


def make(name: str, prompt: str = "paper", **options) -> TextGame:
    """Makes a text game by name.

    Args:
      name: one of `GAMES`, or your own as `my_module:text_game`: a `TextGame`, or a function of `prompt` and `options`
        that returns one.
      prompt: "paper" (rules, coordinate lists and grid) or "compact" (the grid alone).
      **options: those of the game's own `text_game`, e.g. `size` or `max_steps`.

    Raises:
      ValueError: an unknown name, prompt or option, an option outside its range, or a package that is not installed.
    """
    return _make(TextGame, _TEXT, name, prompt=prompt, **options)


def context_of(name: str, context: str = "auto") -> str:
    """Returns what a model reads before it acts: "state", or "transcript" of the episode.

    That is `context`, unless it is "auto".

    Raises:
      ValueError: your own game cannot be loaded; see `user_game.load`.
    """
    if context != "auto":
        return context
    if len(mixture.names_of(name)) > 1 or outside.is_outside(name):
        return "transcript"
    if ":" not in name:
        return "transcript" if name in IN_TRANSCRIPTS else "state"
    name, options = outside.split_options(name)
    options.pop("reversible", None)
    game = user_game.load(name, HostGame, TextGame, **{"prompt": "paper", **options})
    return "transcript" if isinstance(game, HostGame) else "state"


def make_board(name: str, **options) -> BoardGame:
    """Makes a game of two players by name: one of `BOARD_GAMES`, or `my_module:board_game`. Errors: see `make`."""
    return _make(BoardGame, _BOARD, name, **options)


def make_control(name: str, **options) -> ControlGame:
    """Makes a game for agents that observe numbers: one of `CONTROL_GAMES`, or `my_module:control_game`.

    Args:
      **options: those of the module's own `control_game`, e.g. `points` for Pong or `physics` for the robots.

    Raises:
      ModuleNotFoundError, ValueError: see `make`; the package mujoco is not installed.
    """
    return _make(ControlGame, _CONTROL, name, **options)


def make_host(
    name: str,
    max_steps: int = 0,
    env_workers: str = "",
    env_timeout: float = workers.TIMEOUT,
    turn_actions: int = 1,
    **options,
) -> HostGame:
    """Makes a game that is played by text on the host, by name.

    Args:
      name: one of `HOST_GAMES`; your own as `my_module:host_game`, any text game of yours or a class of environments
        (`outside.classes`); or another package's, such as `gymnasium:FrozenLake-v1` (`outside`). These two may have
        options, `name?option=value&option=value`; with `reversible=True` any of their states can be stepped again, by
        copies or by repeating the episode (`restorable`). `a,b,c` is a mixture of games (`mixture`).
      max_steps: horizon; 0 is the game's own.
      env_workers: "8", "ray" or "ray:8": environments in processes or Ray actors (`workers`); "" or "0": in this one.
      env_timeout: seconds for a step in a worker, after which its episodes are given up.
      turn_actions: that a reply may hold; above 1, see `text.action_sequences`.
      **options: those of the game's own `host_game`, e.g. `data` of ALFWorld and WebShop; empty ones are left out.
        Your own game takes what its function has arguments for, and `max_steps` in any case.

    Raises:
      FileNotFoundError, ValueError: an unknown name; a package that is not installed; what the game raises for its
        options.
    """
    integer("max_steps", max_steps, 0)
    integer("turn_actions", turn_actions, 1)
    if turn_actions > 1:
        game = make_host(name, max_steps, env_workers, env_timeout, **options)
        return importlib.import_module("nlrl_jax.text.action_sequences").in_sequences(game, turn_actions)
    if chosen := workers.choice(env_workers):
        if name == "alfworld" and not chosen.on_ray:  # it has workers in any case
            return make_host(name, max_steps, workers=chosen.number, patience=env_timeout, **options)
        game, recipe = make_host(name, max_steps, **options), (name, max_steps, options)
        return importlib.import_module("nlrl_jax.envs.workers.host").in_workers(game, chosen, recipe, env_timeout)
    if len(names := mixture.names_of(name)) > 1:
        return mixture.mixture({each: make_host(each, max_steps, **options) for each in names})
    options = {key: value for key, value in {"max_steps": max_steps, **options}.items() if value}
    if ":" in name:
        return _make_by_address(name, max_steps, options)
    if name in _HOST:
        return _make(HostGame, _HOST, name, **options)
    if name in _TEXT and not hasattr(_imported(name, _TEXT[name][0]), _FUNCTIONS[HostGame]):
        return _on_the_host(make(name, **options))
    return _make(HostGame, _TEXT, name, **options)


def _make_by_address(name: str, max_steps: int, options: dict[str, Any]) -> HostGame:
    """Makes a host game that is yours or another package's: `address:name?option=value`; see `make_host`."""
    name, settings = outside.split_options(name)
    reversible = settings.pop("reversible", False)
    if outside.is_outside(name):
        game = outside.make(name, **{**options, **settings})
    else:
        game = user_game.load(name, HostGame, TextGame, without=("max_steps",), **{**options, **settings})
    if isinstance(game, TextGame):
        return _on_the_host(game, max_steps)
    game = dataclasses.replace(game, max_steps=max_steps) if max_steps else game
    return restorable.restorable(game, (game.kinds[0], 0)) if reversible else game


def make_host_pair(name: str, maps: tuple[str, str] = ("train", "held_out"), **options) -> tuple[HostGame, HostGame]:
    """Makes a host game to train on and one to evaluate on: the same one twice where there are no maps for each.

    Args:
      maps: of games in `WITH_MAPS`. options: see `make_host`.
    """
    if name not in WITH_MAPS:
        return (make_host(name, **options),) * 2
    train_game = make_host(name, maps=maps[0], **options)
    return train_game, train_game if maps[0] == maps[1] else make_host(name, maps=maps[1], **options)


def _on_the_host(game: TextGame, max_steps: int = 0) -> HostGame:
    if max_steps:
        game = dataclasses.replace(game, params=game.params.replace(max_steps_in_episode=max_steps))
    return importlib.import_module("nlrl_jax.text.host").of_text_game(game)


def _make(kind: type, games: dict[str, tuple[str, dict[str, Any]]], name: str, **options) -> Any:
    """Makes a built-in game, or loads the user's own.

    Raises:
      ValueError: an unknown name, a package that is not installed, an option that the game does not take or that its
        name has settled.
    """
    if ":" in name:
        return user_game.load(name, kind, **options)
    if name not in games:
        raise _unknown(name, kind)
    module, settled = games[name]
    maker = getattr(_imported(name, module), _FUNCTIONS[kind])
    parameters = inspect.signature(maker).parameters.values()
    named = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    free = [option for option in named if option not in settled]
    unknown = sorted(options.keys() - free)
    if unknown and (unknown[0] in settled or len(named) == len(parameters)):
        raise ValueError(f"{name} has no option {unknown[0]!r}; its options are {', '.join(free) or 'none'}")
    return maker(**settled, **options)


def _imported(name: str, module: str):
    """Imports a game's module; ValueError says which extra to install where a package is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "nlrl_jax") or name in _CONTROL:
            raise
        raise ValueError(f"{name} needs the package {package}: pip install 'nlrl_jax[{name}]'") from None


def demonstrations(name: str, successes: int, failures: int, seed: int, held_out: bool = False) -> list[Any]:
    """Returns trajectories of a game with reflections, each with `history` and `success`.

    Args:
      name: one of `DEMONSTRATED`. BabyAI's are made; for the others, see `recorded`.
      successes, failures: how many; recorded ones are at most 12 and 6.
      seed: of those that are made.
      held_out: others, to evaluate on.
    """
    if name in RECORDED:
        return importlib.import_module("nlrl_jax.envs.recorded").demonstrations(name, successes, failures, held_out)
    return importlib.import_module("nlrl_jax.envs.babyai.demonstrations").demonstrations(
        successes, failures, seed, held_out
    )


def _unknown(name: str, kind: type) -> ValueError:
    """Builds the error for a name that is no game here: one of another kind, a misspelling, a bare file."""
    names_by_kind = {TextGame: GAMES, ControlGame: CONTROL_GAMES, HostGame: HOST_GAMES, BoardGame: BOARD_GAMES}
    names, function = names_by_kind[kind], _FUNCTIONS[kind]
    for its_kind in (TextGame, ControlGame, HostGame):
        if name in names_by_kind[its_kind]:
            scripts = user_game.PLAYED_BY[its_kind]
            return ValueError(f"game {name!r} is played by {scripts}; here are {', '.join(names)}")
    close = difflib.get_close_matches(name.lower(), names, n=1)
    stem = name.removesuffix(".py")
    module, dot, attribute = stem.rpartition(".")
    path = pathlib.Path(f"{stem.replace('.', '/')}.py")
    if path.is_file():
        close = [f"{stem}:{(kind is HostGame and _environment_in(path)) or function}"]
    elif dot and all(part.isidentifier() for part in stem.split(".")):
        close = [f"{module}:{attribute}"]
    if kind is HostGame and (scheme := name.partition("/")[0].lower()) in outside.SCHEMES:
        close = [f"{scheme}:{name.partition('/')[2]}"]
    hint = f"did you mean {close[0]}? There are" if close and name else "choose one of"
    others = f"another package's, such as {outside.HELP}, " if kind is HostGame else ""
    return ValueError(f"unknown game {name!r}; {hint} {', '.join(names)}, {others}or your own as my_module:{function}")


def _environment_in(path: pathlib.Path) -> str:
    """The first class with a method `reset` in a file of Python, which is not run; "" where there is none."""
    with contextlib.suppress(SyntaxError, UnicodeDecodeError):
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, ast.ClassDef) and any(
                isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name == "reset"
                for part in statement.body
            ):
                return statement.name
    return ""
