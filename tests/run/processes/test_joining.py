"""How a process of several ends: at once, with its reason, which the others hear. No process ends here."""

import jax
import pytest

from nlrl_jax.run.processes import joining


class Ended(BaseException):
    pass


class Meeting:
    """What the others hear."""

    def __init__(self, reason=""):
        self.reason, self.told, self.ended = reason, [], self

    def wait(self, seconds):
        self.waited = seconds

    def tell_end(self, reason=""):
        self.told.append(reason)


@pytest.fixture
def end(monkeypatch, capsys):
    """Runs `main` as one of several processes: (status, what it says, what the others hear)."""

    def leave(status):
        raise Ended(status)

    def run(main, reason=""):
        meeting = Meeting(reason)
        monkeypatch.setattr(joining, "_meeting", meeting)
        monkeypatch.setattr(joining.os, "_exit", leave)
        with pytest.raises(Ended) as ended:
            joining.together(main)([])
        return ended.value.args[0], capsys.readouterr().err, meeting.told

    return run


def fails(error):
    def main(argv):
        raise error

    return main


LOST = jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: connection reset by peer\nand a trace")
DIED = "process 0 of this run died; start all again with --resume"


@pytest.mark.parametrize(
    "error, reason, status, said, told",
    [
        (SystemExit("error: the disk is full"), "", 1, "error: the disk is full\n", "the disk is full"),
        (SystemExit("error: mine"), DIED, 1, "error: mine\n", "mine"),
        (SystemExit(130), "", 130, "", "interrupted"),
        (LOST, DIED, 1, f"error: {DIED}\n", DIED),
        (LOST, "", 1, "error: JaxRuntimeError: UNKNOWN: Gloo all-reduce failed: connection reset by peer\n", None),
        (RuntimeError("barrier"), DIED, 1, f"error: {DIED}\n", DIED),
    ],
)
def test_a_failure_ends_the_process_and_the_others_hear_why(end, monkeypatch, error, reason, status, said, told):
    monkeypatch.delenv("NLRL_TRACEBACK", raising=False)
    found = end(fails(error), reason)
    assert found[:2] == (status, said) and found[2] == [told or said.removeprefix("error: ").strip()]


def test_a_fault_of_ours_shows_its_trace(end):
    status, said, told = end(fails(TypeError("a fault")))
    assert status == 1 and "Traceback" in said and told == ["TypeError: a fault"]


@pytest.mark.parametrize("status", [None, 0])
def test_an_end_that_is_no_failure_is_left_alone(monkeypatch, status):
    monkeypatch.setattr(joining, "_meeting", Meeting())
    with pytest.raises(SystemExit):
        joining.together(fails(SystemExit(status)))([])
    assert joining.together(lambda argv: len(argv))(["x"]) == 1


def test_a_process_alone_fails_as_it_does(monkeypatch):
    for error in (SystemExit("error: x"), LOST, TypeError("x")):
        with pytest.raises(type(error)):
            joining.together(fails(error))([])


SLURM = {
    "SLURM_JOB_ID": "4097", "SLURM_STEP_NODELIST": "node[07-08]", "SLURM_NTASKS": "2", "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2",
}  # fmt: skip


def test_srun_is_recognised(monkeypatch):
    assert joining.found_by_cluster("", 0, -1) is None
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    assert joining.found_by_cluster("", 0, -1) == ("node07:61441", 2, 1)
    assert joining.found_by_cluster("host0:29500", 4, 3) == ("host0:29500", 4, 3)
    monkeypatch.delenv("SLURM_PROCID")
    with pytest.raises(ValueError, match="JAX cannot find the first; give each --coordinator_address"):
        joining.found_by_cluster("", 0, -1)
