"""Who has ended, and why, as the counts and reasons in a store say. Threads stand for processes; none ends here."""

import concurrent.futures
import threading
import time

import jax
import pytest

from nlrl_jax.run.processes import peers
from nlrl_jax.run.processes.peers import Peers


class Store:
    """JAX's coordination service, which may be gone."""

    def __init__(self):
        self.rows, self.is_gone = {}, False

    def key_value_set(self, key, value, allow_overwrite=False):
        if self.is_gone:
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: Socket closed")
        assert allow_overwrite or key not in self.rows
        self.rows[key] = value

    def key_value_dir_get(self, prefix):
        return [(key, value) for key, value in self.rows.items() if key.startswith(prefix)]

    def blocking_key_value_get(self, key, timeout_in_ms):
        deadline = time.monotonic() + timeout_in_ms / 1000
        while key not in self.rows:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return self.rows[key]

    def wait_at_barrier(self, name, timeout_in_ms):
        pass


@pytest.fixture
def join(monkeypatch):
    """The processes of a run, by their numbers; all end with the test."""
    store, joined, ends = Store(), [], []
    monkeypatch.setattr(peers, "_INTERVAL", 0.02)
    monkeypatch.setattr(peers, "_PAUSE", 0.3)
    monkeypatch.setattr(peers.distributed.global_state, "client", store)
    monkeypatch.setattr(Peers, "exit", lambda self, status, reason="": ends.append((self.process, status)))

    def start(count):
        joined.extend(Peers(process, count) for process in range(count))
        return joined, store, ends

    yield start
    for process in joined:
        process.leave()


def test_all_living_is_no_verdict_and_all_have_the_facts(join):
    processes, _, ends = join(3)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        tables = list(pool.map(lambda process: process.exchange({"--seed": process.process}, 5.0), processes))
        assert list(pool.map(Peers.verdict, processes)) == ["", "", ""] and not ends
    assert tables == [[{"--seed": n, "--num_processes": 3} for n in range(3)]] * 3


def test_another_number_of_processes_is_a_difference():
    first, other = object.__new__(Peers), object.__new__(Peers)
    store = Store()
    for process, count, row in ((0, 2, first), (1, 3, other)):
        row.process, row.count, row._client = process, count, store
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        tables = list(pool.map(lambda row: row.exchange({}, 5.0), (first, other)))
    assert tables == [[{"--num_processes": 2}, {"--num_processes": 3}]] * 2


@pytest.mark.parametrize("dead", [0, 1])
def test_the_process_whose_count_stands_still_has_died(join, dead):
    processes, store, _ = join(3)
    processes[dead].leave()
    store.is_gone = dead == 0
    assert processes[2].verdict() == f"process {dead} of this run died; start all again with --resume"


def test_a_reason_reaches_all_others_and_ends_them(join):
    processes, store, ends = join(2)
    store.key_value_set("nlrl_jax/ended/1", "process 1 ended: the disk is full")
    threading.Event().wait(0.1)
    assert processes[0].verdict() == "process 1 ended: the disk is full"
    threading.Event().wait(0.3)
    assert (0, "error: process 1 ended: the disk is full") in ends


def test_an_exit_comes_also_where_nobody_reads_why(monkeypatch):
    class Ended(BaseException):
        pass

    def leave(status):
        raise Ended(status)

    def write(text):
        raise BrokenPipeError

    process = object.__new__(Peers)
    process._exit_lock = threading.Lock()
    monkeypatch.setattr(peers.os, "_exit", leave)
    monkeypatch.setattr(peers.sys.stderr, "write", write)
    with pytest.raises(Ended, match="1"):
        process.exit("error: the pipe is broken")
