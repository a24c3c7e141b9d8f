"""Where the environments of a host game live."""

from __future__ import annotations

import dataclasses

from nlrl_jax.config import check, option

IN_WORKERS = ("env_workers", "env_timeout")  # the options below


@dataclasses.dataclass(frozen=True)
class EnvironmentsConfig:
    """Where environments live: in this process, or in workers, in which they step at the same time."""

    env_workers: str = option(
        "0",
        "games of the host: processes in which environments live and step at the same time; ray or ray:N: actors of a "
        "Ray cluster, one for each of its CPUs or N; 0: in this process (ALFWorld: one engine per core)",
    )
    env_timeout: float = option(
        120.0,
        "games of the host: seconds that a step may take in a worker, after which the worker is replaced and its "
        "episodes end",
        above=0,
    )

    def __post_init__(self):
        check(self)
