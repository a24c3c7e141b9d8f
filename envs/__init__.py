"""The games. `make(name)` gives a `TextGame`, `make_control(name)` a `ControlGame`; modules hold the environments.

Nothing heavy is imported until a game is made (gymnax alone takes seconds to import).
"""

from __future__ import annotations

import importlib

_MAKERS = {
    "frozen_lake": ("envs.frozen_lake", {"slippery": False}),
    "frozen_lake_slippery": ("envs.frozen_lake", {"slippery": True}),
    "snake": ("envs.snake", {"poison": False}),
    "snake_poison": ("envs.snake", {"poison": True}),
    "maze_double_t": ("envs.maze.env", {"layout": "double_t"}),
    "maze_medium": ("envs.maze.env", {"layout": "medium"}),
    "tic_tac_toe": ("envs.tic_tac_toe.env", {}),
    "tic_tac_toe_first_move": ("envs.tic_tac_toe.env", {"opponent": "first_move"}),
    "tic_tac_toe_minimax": ("envs.tic_tac_toe.env", {"opponent": "minimax"}),
    "breakthrough": ("envs.breakthrough.env", {}),
    "breakthrough_first_move": ("envs.breakthrough.env", {"opponent": "first_move"}),
}

GAMES = tuple(_MAKERS)


def make(name: str, prompt: str = "paper", **options):
    """The text game `name`.

    Args:
      name: one of `GAMES`.
      prompt: "paper" (rules, coordinate lists and grid) or "compact" (the grid alone).
      **options: those of the game's own `text_game`, e.g. `size` or `max_steps`.

    Returns:
      A `nlrl_jax.types.TextGame`.

    Raises:
      ValueError: an unknown name or prompt, or an option outside its range.
    """
    if name not in _MAKERS:
        raise ValueError(f"unknown game {name!r}; known games: {', '.join(GAMES)}")
    module, preset = _MAKERS[name]
    return importlib.import_module(module).text_game(prompt=prompt, **preset, **options)


_CONTROL_MAKERS = {
    "pong": ("envs.pong.env", ()),
    "hopper": ("envs.locomotion.env", ("hopper",)),
    "walker2d": ("envs.locomotion.env", ("walker2d",)),
    "ant": ("envs.locomotion.env", ("ant",)),
}

CONTROL_GAMES = tuple(_CONTROL_MAKERS)


def make_control(name: str, **options):
    """The game `name` for agents that see numbers.

    Args:
      name: one of `CONTROL_GAMES`.
      **options: those of the module's own `control_game`, e.g. `points` for Pong or `physics` for the robots.

    Returns:
      A `nlrl_jax.types.ControlGame`.

    Raises:
      ValueError: an unknown name, or an option outside its range.
    """
    if name not in _CONTROL_MAKERS:
        raise ValueError(f"unknown game {name!r}; known games: {', '.join(CONTROL_GAMES)}")
    module, arguments = _CONTROL_MAKERS[name]
    return importlib.import_module(module).control_game(*arguments, **options)
