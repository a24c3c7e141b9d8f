"""Several processes, on one machine or many, that train one model together: how they start, agree and write.

    python -m launch.train_ms_grpo --mesh 2,4,1 --coordinator_address host0:29500 --num_processes 2 --process_id 0 ...
    srun python -m launch.train_ms_grpo --mesh 2,4,1 ...            # found by itself, as with Open MPI

All run the same script on the same arguments and see the same --run_dir. The first one writes files and speaks; the
others only compute. Names and detection are those of `jax.distributed.initialize`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from absl import flags
from jax.experimental import multihost_utils

from nlrl_jax.types import LanguageModelError

T = TypeVar("T")

# Set for each process by srun and mpirun: how many there are.
_CLUSTERS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")


def define_flags() -> None:
    """--coordinator_address, --num_processes and --process_id."""
    for one in (
        flags.Flag(
            flags.ArgumentParser(), None, "coordinator_address", "", "HOST:PORT of the first of several processes"
        ),
        flags.Flag(flags.IntegerParser(), None, "num_processes", 0, "how many processes train together"),
        flags.Flag(flags.IntegerParser(), None, "process_id", -1, "which of them this is, from 0"),
    ):
        flags.DEFINE_flag(one, module_name="Run")


def start(coordinator_address: str = "", num_processes: int = 0, process_id: int = -1) -> None:
    """Joins the processes of a run, before JAX has looked for devices; does nothing for a process alone.

    Raises:
      ValueError: some of the arguments are missing, or out of bounds.
    """
    options = (bool(coordinator_address), num_processes > 0, process_id >= 0)
    found = any(int(os.environ.get(name) or 1) > 1 for name in _CLUSTERS)
    if not any(options) and not found:
        return
    if any(options) and not all(options):
        raise ValueError(
            "several processes need --coordinator_address HOST:PORT, --num_processes N and --process_id 0 to N - 1; "
            f"got {coordinator_address!r}, {num_processes}, {process_id}"
        )
    if all(options) and process_id >= num_processes:
        raise ValueError(f"process_id is {process_id}; with {num_processes} processes it must be below that")
    if jax.config.jax_platforms == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if all(options):
        jax.distributed.initialize(coordinator_address, num_processes, process_id)
    else:
        jax.distributed.initialize()
    if not first():
        sys.stdout = open(os.devnull, "w")


def several() -> bool:
    """Whether more than this process computes."""
    return jax.process_count() > 1


def first() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def any_of(flag: bool) -> bool:
    """Whether `flag` holds in any process; all must ask."""
    return bool(np.any(multihost_utils.process_allgather(np.array(flag)))) if several() else flag


def from_first(make: Callable[[], T]) -> T:
    """What `make` returns in the first process, or raises there, in all of them; all must ask. JSON keeps it."""
    if not several():
        return make()
    found: dict[str, Any] = {}
    if first():
        try:
            found = {"value": make()}
        except (ValueError, OSError, LanguageModelError) as error:
            found = {"error": str(error)}
    text = np.frombuffer(json.dumps(found).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.array(len(text), np.int64)))
    buffer = np.zeros(size, np.uint8)
    buffer[: len(text)] = text
    found = json.loads(multihost_utils.broadcast_one_to_all(buffer).tobytes())
    if "error" in found:
        raise LanguageModelError(found["error"])
    return found["value"]


def wait() -> None:
    """Returns once all processes have come here."""
    any_of(False)
