"""Processes that meet agree or end with one sentence, and each learns of another's end. Threads stand for them."""

import concurrent.futures
import contextlib
import socket
import threading

import pytest

from nlrl_jax.run.processes.meeting import _connect, differing, local_port, meet, parse_address


@pytest.fixture
def address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def meet_all(address, *who, patience=5.0):
    """Meetings, or the messages of errors, of processes (number of processes, own number, facts)."""

    def one(number, me, facts):
        try:
            return meet(address, number, me, facts, patience)
        except ValueError as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor(len(who)) as pool:
        return list(pool.map(lambda args: one(*args), who))


SAME = {"--seed": 0}


@pytest.mark.parametrize(
    "who, said",
    [
        (((2, 0, SAME), (2, 1, {"--seed": 8})), "alike, but --seed is 0 in process 0 and 8 in process 1"),
        (((3, 0, SAME), (3, 1, SAME), (3, 2, {})), "--seed is 0 in process 0 and not given in process 2"),
        (((2, 0, SAME), (3, 1, SAME)), "--num_processes is 2 in process 0 and 3 in process 1"),
        (((3, 0, SAME), (3, 1, SAME), (3, 1, SAME)), "two processes have --process_id 1; number them from 0 to 2"),
    ],
)
def test_all_end_with_the_same_sentence(address, who, said):
    found = meet_all(address, *who)
    assert said in found[0] and found == [found[0]] * len(who)


def test_who_does_not_come_is_named(address):
    found = meet_all(address, (4, 0, SAME), (4, 2, SAME), patience=0.3)
    assert "of 4 processes number 1, 3 did not connect" in found[0] and found[1] == found[0]


def test_nobody_is_there(address):
    with pytest.raises(ValueError, match=f"no process 0 at {address} within 0.2 s .connection refused.*start"):
        meet(address, 2, 1, SAME, 0.2)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n", b"[]\n", b"", b'{"hello": "who?"}\n'])
def test_a_port_of_another_program(address, answer):
    with socket.create_server(("127.0.0.1", parse_address(address)[1])) as server:

        def serve():
            other = server.accept()[0]
            other.recv(1000)
            other.sendall(answer)
            other.close()

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(ValueError, match="no process 0 waits at"):
            meet(address, 2, 1, SAME, 5.0)
        with pytest.raises(ValueError, match="cannot listen at port .*: it is in use; choose another"):
            meet(address, 2, 0, SAME, 5.0)


def test_strangers_are_left_out(address):
    def visit():
        stranger = _connect(*parse_address(address), 5.0)
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(10) == b""  # sent away
        return meet(address, 2, 1, SAME, 5.0)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first, other = pool.submit(meet, address, 2, 0, SAME, 5.0), pool.submit(visit)
        assert (first.result().me, other.result().me) == (0, 1)


@pytest.mark.parametrize(
    "given", ["host0", "host0:", ":29500", "host0:x", "host0:0", "host0:65536", "::1:29500", "http://host0:1", "h:-1"]
)
def test_an_address_that_is_none(given):
    with pytest.raises(ValueError, match="it must be HOST:PORT, such as host0:29500"):
        meet(given, 2, 1, SAME, 5.0)


@pytest.mark.parametrize("me", [0, 1])
def test_an_unknown_host(me, monkeypatch):
    def unknown(*args, **kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ValueError, match="this machine cannot resolve the host 'hots0'"):
        meet("hots0:29500", 2, me, SAME, 5.0)


def test_addresses():
    assert parse_address("host0:29500") == ("host0", 29500) and parse_address("[::1]:80") == ("::1", 80)


@pytest.mark.parametrize("dies", [0, 1])
def test_the_death_of_one_reaches_all_others(address, dies):
    meetings = meet_all(address, (3, 0, SAME), (3, 1, SAME), (3, 2, SAME))
    lost = {one.me: threading.Event() for one in meetings}
    for one in meetings:
        if one.me != dies:
            one.watch(lost[one.me].set)
    for one in meetings[dies]._sockets.values():  # as the system does
        one.close()
    for one in meetings:
        if one.me != dies:
            assert lost[one.me].wait(5)
            assert one.reason == f"process {dies} of this run died; start all again with --resume"


def test_an_end_with_a_reason_and_one_without(address):
    meetings = meet_all(address, (2, 0, SAME), (2, 1, SAME))
    lost = threading.Event()
    meetings[0].watch(lost.set)
    meetings[1].tell_end("the disk is full")
    assert lost.wait(5) and meetings[0].reason == "process 1 ended: the disk is full"
    meetings[0].tell_end()
    meetings[1].ended.clear()
    meetings[1]._watch(0, meetings[1]._sockets[0], lost.clear)  # reads {"reason"} of the first, which it told to all
    assert not lost.is_set() and "the disk is full" in meetings[1].reason


def test_work_that_is_done_is_no_death(address):
    meetings = meet_all(address, (2, 0, SAME), (2, 1, SAME))
    meetings[1].tell_end()
    meetings[1]._sockets[0].close()
    called = []
    meetings[0]._watch(1, meetings[0]._sockets[1], lambda: called.append(1))
    assert not called and not meetings[0].reason


def test_a_local_port_leads_there_and_outlives_it():
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(("127.0.0.1", local_port("127.0.0.1", server.getsockname()[1])))
        far = server.accept()[0]
        near.sendall(b"there")
        assert far.recv(10) == b"there"
        far.sendall(b"back")
        assert near.recv(10) == b"back"
        far.close()
    near.sendall(b"more")
    near.settimeout(0.2)
    with pytest.raises(TimeoutError):  # and not b"", which would be the end
        near.recv(10)


def test_differences_are_told_with_their_values():
    facts = [{"a": 1, "b": [1], "c": float("nan")}, {"a": 1, "b": [2], "c": float("nan"), "d": "x"}]
    assert (
        differing(facts)
        == 'b is [1] in process 0 and [2] in process 1; d is not given in process 0 and "x" in process 1'
    )
    assert differing(facts[:1] * 3) == ""
    assert differing([{str(n): 0 for n in range(9)}, {}]).endswith("; and 4 more")
