"""How a process of several ends: at once, with its reason, which the others hear. No process ends here."""

import socket

import jax
import pytest

from nlrl_jax.run.processes import joining


class Ended(BaseException):
    pass


class Peers:
    """Notes how this process ends."""

    def exit(self, status, reason=""):
        raise Ended(status, reason)


@pytest.fixture
def end(monkeypatch, capsys):
    """Runs `main` as one of several processes: (status, what the others hear, the trace of a fault)."""

    def run(main):
        monkeypatch.setattr(joining, "_peers", Peers())
        with pytest.raises(Ended) as ended:
            joining.together(main)([])
        return *ended.value.args, capsys.readouterr().err

    return run


def fails(error):
    def main(argv):
        raise error

    return main


LOST = jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: connection reset by peer\nand a trace")
GLOO = "JaxRuntimeError: UNKNOWN: Gloo all-reduce failed: connection reset by peer"


@pytest.mark.parametrize(
    "error, status, told",
    [
        (SystemExit("error: the disk is full"), "error: the disk is full", "the disk is full"),
        (SystemExit(130), 130, "interrupted"),
        (LOST, f"error: {GLOO}", GLOO),
        (SystemExit("error: UNKNOWN: Gloo AllGather failed"),) + ("error: UNKNOWN: Gloo AllGather failed",) * 2,
    ],
)
def test_a_failure_ends_the_process_and_the_others_hear_why(end, monkeypatch, error, status, told):
    monkeypatch.delenv("NLRL_TRACEBACK", raising=False)
    waits = []  # a failed collective may be another's death, which has the first word
    monkeypatch.setattr(joining.time, "sleep", waits.append)
    assert end(fails(error)) == (status, told.removeprefix("error: "), "")
    assert len(waits) == ("Gloo" in str(error))


def test_a_fault_of_ours_shows_its_trace(end):
    status, told, trace = end(fails(TypeError("a fault")))
    assert status == f"error: {told}" == "error: TypeError: a fault" and "Traceback" in trace


def test_an_end_that_is_no_failure_and_one_of_a_process_alone_are_left_alone(monkeypatch):
    for error in (SystemExit("error: x"), LOST, TypeError("x")):
        with pytest.raises(type(error)):
            joining.together(fails(error))([])
    monkeypatch.setattr(joining, "_peers", Peers())
    for status in (None, 0):
        with pytest.raises(SystemExit):
            joining.together(fails(SystemExit(status)))([])
    assert joining.together(lambda argv: len(argv))(["x"]) == 1


@pytest.mark.parametrize(
    "address", ["host0", "host0:", ":29500", "host0:x", "host0:0", "host0:65536", "::1:29500", "http://host0:1", "h:-1"]
)
def test_an_address_that_is_none(address):
    with pytest.raises(ValueError, match="it must be HOST:PORT, such as host0:29500"):
        joining.check_address(address, 1)


def test_a_port_in_use():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ValueError, match=f"cannot listen at port {port} .*in use.*; choose another"):
            joining.check_address(f"127.0.0.1:{port}", 0)
    joining.check_address(f"[::1]:{port}", 0)


SLURM = {
    "SLURM_JOB_ID": "4097", "SLURM_STEP_NODELIST": "node[07-08]", "SLURM_NTASKS": "2", "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2",
}  # fmt: skip


def test_srun_is_recognised(monkeypatch):
    assert joining.find_cluster("", 0, -1) is None
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    assert joining.find_cluster("", 0, -1) == ("node07:61441", 2, 1)
    assert joining.find_cluster("host0:29500", 4, 3) == ("host0:29500", 4, 3)
    monkeypatch.delenv("SLURM_PROCID")
    with pytest.raises(ValueError, match="JAX cannot find the first; give each --coordinator_address"):
        joining.find_cluster("", 0, -1)
