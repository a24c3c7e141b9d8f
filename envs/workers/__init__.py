"""Environments in other processes, where a step is slow or takes much memory: they step at the same time.

    envs.make_host("my_module:MyEnvironment", env_workers="8")         # eight processes of this machine
    envs.make_host("gem:game:Sudoku-v0-easy", env_workers="ray:64")    # 64 actors of a Ray cluster

    this process                            worker                                channel
    states of a game are names  --request-> has the game, and its states          process: lines of JSON in pipes
    (`host.RemoteState`)        <--answer-- (`serve.GameServer`)                  actor: a call of Ray

A worker that dies, or takes longer than `env_timeout` for a step, is replaced; the episodes that lived there end with
an error, and the others go on. ALFWorld's engines speak to this process through the same pipes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TIMEOUT = 120.0  # seconds for a step


class Choice(NamedTuple):
    """number: of workers, 0 for one on each CPU of a Ray cluster. on_ray: as its actors, not as processes here."""

    number: int
    on_ray: bool


def choice(text: str) -> Choice | None:
    """Reads "8", "ray" or "ray:8"; None for "0" and "", no workers.

    Raises:
      ValueError: it is something else.
    """
    match = re.fullmatch(r"(\d*)|(ray)(?::([1-9]\d*))?", str(text))
    if match is None:
        raise ValueError(f"--env_workers is {text!r}; it must be a number of processes, ray or ray:N")
    if match[2]:
        return Choice(int(match[3] or 0), True)
    return Choice(int(match[1]), False) if int(match[1] or 0) else None
