"""Who has ended, and why, as the counts and reasons in a store say. Threads stand for processes; none ends here."""

import concurrent.futures
import time
from unittest import mock

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


class Ended(BaseException):
    pass


@pytest.fixture
def join(monkeypatch):
    """Peers of so many processes each, the store, and who has ended how; all end with the test."""
    store, joined, ends = Store(), [], []
    monkeypatch.setattr(peers, "HEARTBEAT", 0.4)
    monkeypatch.setattr(peers, "_INTERVAL", 0.02)
    monkeypatch.setattr(peers, "_PAUSE", 0.1)
    monkeypatch.setattr(peers.jax.distributed, "initialize", lambda *args, **options: None)
    monkeypatch.setattr(peers.ctypes, "CDLL", mock.MagicMock())
    monkeypatch.setattr(peers.distributed.global_state, "client", store)
    monkeypatch.setattr(Peers, "exit", lambda self, status, reason="": ends.append((self.process, status)))

    def start(*counts):
        joined.extend(Peers("host:1", count, process, 1.0) for process, count in enumerate(counts))
        return joined, store, ends

    yield start
    for process in joined:
        process.leave()


@pytest.mark.parametrize("counts, expected", [((3, 3, 3), (3, 3, 3)), ((2, 3), (2, 3))])
def test_all_have_the_facts_of_all_and_the_number_of_processes_is_among_them(join, counts, expected):
    processes, _, ends = join(*counts)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        tables = list(pool.map(lambda process: process.exchange({"--seed": process.process}, 5.0), processes))
    assert tables == [[{"--seed": n, "--num_processes": number} for n, number in enumerate(expected)]] * len(counts)
    assert not ends


@pytest.mark.parametrize("dead", [0, 1])
def test_the_process_whose_count_stands_still_or_that_held_the_store_has_died(join, dead):
    processes, store, ends = join(3, 3, 3)
    processes[dead].leave()
    store.is_gone = dead == 0
    time.sleep(0.3 * dead)  # JAX notices at once that the store is gone, and any other death by the heartbeat
    processes[2].lost()
    assert ends == [(2, f"error: process {dead} of this run died; start all again with --resume")]


def test_a_reason_reaches_all_others_and_ends_them(join):
    _, store, ends = join(2, 2)
    store.key_value_set("nlrl_jax/ended/1", "process 1 ended: the disk is full")
    deadline = time.monotonic() + 5
    while len(ends) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert {(number, "error: process 1 ended: the disk is full") for number in range(2)} <= {*ends}


def test_an_exit_comes_also_where_nobody_reads_why(monkeypatch):
    process = object.__new__(Peers)
    process._exit_lock = mock.MagicMock()
    monkeypatch.setattr(peers.os, "_exit", mock.Mock(side_effect=Ended))
    monkeypatch.setattr(peers.sys.stderr, "write", mock.Mock(side_effect=BrokenPipeError))
    with pytest.raises(Ended):
        process.exit("error: the pipe is broken")
    peers.os._exit.assert_called_once_with(1)
