"""Several processes, on one machine or many, that train one model together: how they start, agree and write.

    nlrl-jax train_ms_grpo --mesh 2,4,1 --coordinator_address host0:29500 --num_processes 2 --process_id 0 ...
    srun nlrl-jax train_ms_grpo --mesh 2,4,1 ...            # recognised, as is Open MPI

All run the same script with the same arguments, versions and files (which is checked), and see the same --run_dir. Only
the first writes files and prints. Option names and cluster detection are those of `jax.distributed.initialize`. If one
process ends before its work is done, all end and give the reason.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from absl import flags

from nlrl_jax import multihost
from nlrl_jax.run.processes.alike import differing
from nlrl_jax.run.processes.peers import HEARTBEAT, Peers

# The number of processes, as srun and mpirun set it.
_CLUSTERS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
_peers: Peers | None = None  # None in a single process


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
      ValueError: arguments are missing or out of bounds; no connection; too few processes, or two with one number; or
        the processes have different facts or numbers of devices.
    """
    global _peers
    cluster = find_cluster(coordinator_address, num_processes, process_id)
    if cluster is None:
        return
    address, count, process = cluster
    check_address(address, process)
    if jax.config.jax_platforms == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take our signals
    try:
        _peers = Peers(address, count, process, patience)
    except RuntimeError:  # without a text that says why
        print(
            f"error: process {process} could not join the {count} processes of this run at {address} within "
            f"{patience:g} s{_why_unreachable(address)}; start all of them with the same --coordinator_address and "
            f"--num_processes, each with its own --process_id from 0 to {count - 1} (--initialization_timeout waits "
            "longer)",
            file=sys.stderr,
        )
        os._exit(1)  # an ordinary exit would wait for the others
    _check_alike(_peers.exchange(facts(), patience))
    atexit.register(_peers.leave)
    if not multihost.first():
        sys.stdout = open(os.devnull, "w")
    devices = Counter(device.process_index for device in jax.devices())
    _check_alike([{"the number of devices": devices[number]} for number in sorted(devices)])


def _check_alike(facts: Sequence[Mapping[str, Any]]) -> None:
    if difference := differing(facts):
        raise ValueError(f"the processes of a run must be started alike, but {difference}. Give all of them the same")


def find_cluster(coordinator_address: str, num_processes: int, process_id: int) -> tuple[str, int, int] | None:
    """(address of process 0, number of processes, number of this one) from the arguments, srun or mpirun; None for a
    single process. Errors: see `start`."""
    if coordinator_address and 0 <= process_id < num_processes:
        return coordinator_address, num_processes, process_id
    if coordinator_address or num_processes > 0 or process_id >= 0:
        raise ValueError(
            "several processes need --coordinator_address HOST:PORT, --num_processes N and --process_id 0 to N - 1; "
            f"got {coordinator_address!r}, {num_processes}, {process_id}"
        )
    if not any(int(os.environ.get(name) or 1) > 1 for name in _CLUSTERS):
        return None
    from jax._src.clusters import ClusterEnv  # there is no public function for what JAX detects

    address, count, process, _ = ClusterEnv.auto_detect_unset_distributed_params(None, None, None, [], None, None)
    if address is None:
        raise ValueError(
            "srun or mpirun started several processes, but JAX cannot find the first; give each "
            "--coordinator_address HOST:PORT, --num_processes N and --process_id 0 to N - 1"
        )
    return address, count, process


def check_address(address: str, process: int) -> None:
    """Checks an address, and that process 0 can listen there.

    Raises:
      ValueError: it is not HOST:PORT, or the port is in use.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or (":" in host) != host.startswith("["):
        raise ValueError(f"--coordinator_address is {address!r}; it must be HOST:PORT, such as host0:29500")
    if process > 0:
        return
    try:  # JAX would share the port with another run
        socket.create_server(("", int(port))).close()
    except OSError as error:
        raise ValueError(
            f"process 0 cannot listen at port {port} ({os.strerror(error.errno)}); choose another --coordinator_address"
        ) from None


def _why_unreachable(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
    except (OSError, UnicodeError) as error:
        return f" ({getattr(error, 'strerror', None) or error})"
    return ""


def together(main: Callable[[list[str]], Any]) -> Callable[[list[str]], Any]:
    """`main` such that its failure in one of several processes ends them all, with the reason."""

    def run(argv: list[str]) -> Any:
        try:
            return main(argv)
        except BaseException as error:
            if _peers is None or isinstance(error, SystemExit) and not error.code:
                raise
            status = error.code if isinstance(error, SystemExit) else f"error: {_sentence(error)}"
            if isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error):
                # A collective fails where another process has ended, which then ends this one, too (`Peers.lost`).
                time.sleep(2 * HEARTBEAT)
            elif not isinstance(error, SystemExit) or os.environ.get("NLRL_TRACEBACK"):
                with contextlib.suppress(OSError):  # nobody reads it
                    traceback.print_exc()
            reason = {130: "interrupted"}.get(status, "error") if isinstance(status, int) else status
            _peers.exit(status, reason.removeprefix("error: "))

    return run


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:500]
