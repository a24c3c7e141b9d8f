"""Base agents of other ULTRA runs, which `--base` names."""

from __future__ import annotations

import os
import pathlib

from nlrl_jax.run.directory import read_config
from nlrl_jax.weights.checkpoint import Checkpoints


def base_of(base: str, game: str, number: int, contact_forces: bool = False) -> tuple[pathlib.Path, int]:
    """(the folder of the finished base agent of that number among those that `--base` names, its iterations).

    Raises:
      ValueError: no run, one of another game, or one whose base agent is missing or not finished; too few agents.
    """
    folders = []  # (run, folder that holds `base/`) of every base agent
    for name in base.split(","):
        run = pathlib.Path(os.path.expanduser(name.strip()))
        parts = [run, *sorted(run.glob("base_[0-9]*"), key=lambda path: int(path.name.removeprefix("base_")))]
        parts = [folder for folder in parts if (folder / "base").is_dir()]
        if not (run / "config.json").is_file() or not parts:
            raise ValueError(f"--base {name!r} holds no base agent (no config.json or no folder base)")
        folders += [(run, folder) for folder in parts]
    if number >= len(folders):
        agents = "1 base agent" if len(folders) == 1 else f"{len(folders)} base agents"
        raise ValueError(f"--base {base} names {agents}; --bases must be at most that")
    run, folder = folders[number]
    stored = read_config(run)
    if stored.get("game") != game:
        raise ValueError(f"--base {run} is an agent of {stored.get('game')!r}, not of {game!r}")
    if stored.get("contact_forces", False) != contact_forces:
        raise ValueError(f"--base {run} and this run differ in --contact_forces")
    done = Checkpoints(folder / "base" / "checkpoints").latest_step()
    if done is None:
        raise ValueError(f"--base {run} holds no checkpoint of its base agent yet")
    needed = done if stored.get("base") else stored["base_iterations"]  # a copy was finished when it was made
    if done < needed:
        raise ValueError(f"--base {run}: its agent has {done} of {needed} iterations; finish it first (--resume)")
    return folder / "base", done
