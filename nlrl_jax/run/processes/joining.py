"""Several processes, on one machine or many, that train one model together: how they start, agree and write.

    nlrl-jax train_ms_grpo --mesh 2,4,1 --coordinator_address host0:29500 --num_processes 2 --process_id 0 ...
    srun nlrl-jax train_ms_grpo --mesh 2,4,1 ...            # found by itself, as with Open MPI

All run the same script with the same arguments, versions and files (which is checked), and see the same --run_dir. Only
the first writes files and prints. Option names and cluster detection are those of `jax.distributed.initialize`. If one
process ends before its work is done, all end and give the reason.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax
from absl import flags

from nlrl_jax import multihost
from nlrl_jax.run.processes.meeting import Meeting, local_port, meet, parse_address

# The number of processes, as srun and mpirun set it.
_CLUSTERS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
_GRACE = 2.0  # seconds for a process to end by itself after another has ended
_meeting: Meeting | None = None  # None in a single process


def define_flags() -> None:
    """--coordinator_address, --num_processes, --process_id and --initialization_timeout."""
    flags.DEFINE_string("coordinator_address", "", "several processes: HOST:PORT of process 0")
    flags.DEFINE_integer("num_processes", 0, "several processes: how many train together", lower_bound=0)
    flags.DEFINE_integer("process_id", -1, "several processes: the number of this one, from 0", lower_bound=-1)
    text = "several processes: seconds to wait until all have joined"
    flags.DEFINE_float("initialization_timeout", 20.0, text, lower_bound=1)


def start(
    coordinator_address: str = "",
    num_processes: int = 0,
    process_id: int = -1,
    patience: float = 20.0,
    facts: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """Joins the processes of a run, before JAX looks for devices; does nothing for a single process.

    Args:
      patience: seconds to wait until all have joined.
      facts: returns what must be equal in all, as JSON.

    Raises:
      ValueError: arguments are missing or out of bounds; what `meeting.meet` raises; or the processes have different
        numbers of devices.
    """
    global _meeting
    found = found_by_cluster(coordinator_address, num_processes, process_id)
    if found is None:
        return
    address, number, me = found
    meeting = meet(address, number, me, facts(), patience)
    meeting.watch(_lost)
    if jax.config.jax_platforms == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    to_first = address if me == 0 else f"127.0.0.1:{local_port(*parse_address(address))}"
    _meeting = meeting
    jax.distributed.initialize(to_first, number, me)
    atexit.register(meeting.tell_end)
    if not multihost.first():
        sys.stdout = open(os.devnull, "w")
    devices = Counter(device.process_index for device in jax.devices())
    if other := next((n for n in devices if devices[n] != devices[0]), 0):
        raise ValueError(
            f"process 0 has {devices[0]} devices and process {other} has {devices[other]}; give all the same number"
        )


def found_by_cluster(coordinator_address: str, num_processes: int, process_id: int) -> tuple[str, int, int] | None:
    """(address of process 0, number of processes, number of this one) from the arguments, srun or mpirun; None for a
    single process. Errors: see `start`."""
    options = (bool(coordinator_address), num_processes > 0, process_id >= 0)
    if any(options) and not all(options):
        raise ValueError(
            "several processes need --coordinator_address HOST:PORT, --num_processes N and --process_id 0 to N - 1; "
            f"got {coordinator_address!r}, {num_processes}, {process_id}"
        )
    if all(options) and process_id >= num_processes:
        raise ValueError(f"process_id is {process_id}; with {num_processes} processes it must be below that")
    if all(options):
        return coordinator_address, num_processes, process_id
    if not any(int(os.environ.get(name) or 1) > 1 for name in _CLUSTERS):
        return None
    from jax._src.clusters import ClusterEnv  # there is no public function for what JAX detects

    address, number, me, _ = ClusterEnv.auto_detect_unset_distributed_params(None, None, None, [], None, None)
    if address is None:
        raise ValueError(
            "srun or mpirun started several processes, but JAX cannot find the first; give each "
            "--coordinator_address HOST:PORT, --num_processes N and --process_id 0 to N - 1"
        )
    return address, number, me


def together(main: Callable[[list[str]], Any]) -> Callable[[list[str]], Any]:
    """`main` such that its failure in one of several processes ends them all, with the reason."""

    def run(argv: list[str]) -> Any:
        try:
            return main(argv)
        except SystemExit as end:
            if _meeting is None or not end.code:
                raise
            _end(end.code if isinstance(end.code, str) else {130: "interrupted"}.get(end.code, "error"), end.code)
        except BaseException as error:
            if _meeting is None:
                raise
            of_jax = isinstance(error, jax.errors.JaxRuntimeError)  # perhaps because another process ended
            _meeting.ended.wait(_GRACE if of_jax else 0)
            if os.environ.get("NLRL_TRACEBACK") or not (of_jax or _meeting.reason):
                traceback.print_exc()
            reason = _meeting.reason or f"{type(error).__name__}: {error}".partition("\n")[0][:500]
            _end(reason, f"error: {reason}")

    return run


def _end(reason: str, status: str | int) -> None:
    """Tells the others the reason and ends this process at once; an ordinary exit would wait for them."""
    if isinstance(status, str):
        print(status, file=sys.stderr)
    _meeting.tell_end(reason.removeprefix("error: ")[:1000])
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 1)


def _lost() -> None:
    """Ends this process after another has ended, unless it ends by itself first."""
    time.sleep(_GRACE)
    _end(_meeting.reason, f"error: {_meeting.reason}")
