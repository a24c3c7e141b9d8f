"""How the processes of a run meet before JAX joins them, and how each learns that another has ended.

Process 0 listens at the coordinator's address; the others connect and say how they were started. Unless all agree, all
end with the same message. The connections stay open: one that closes without notice belonged to a process that died.

JAX's own client ends its process with a stack trace as soon as process 0 is gone. So the others connect to JAX in
process 0 through a local port (`local_port`), which then stays open, and our message appears before JAX's time-out.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

_HELLO = "a process of nlrl_jax, 1"
_PATIENCE = 5.0  # seconds for a new connection to introduce itself
_WAIT = 30.0  # seconds for JAX in process 0 to listen
_LONGEST = 1 << 20  # bytes of a message
_SHOWN = 5  # differences in a message
_ABSENT = "not given"


def parse_address(address: str) -> tuple[str, int]:
    """(host, port) of HOST:PORT, [IPv6]:PORT included.

    Raises:
      ValueError: it is not of this form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or (":" in host) != host.startswith("["):
        raise ValueError(f"--coordinator_address is {address!r}; it must be HOST:PORT, such as host0:29500")
    return host.strip("[]"), int(port)


def differing(facts: list[Mapping[str, Any]]) -> str:
    """How the processes differ: "--seed is 0 in process 0 and 8 in process 1; ...", or "".

    Args:
      facts: one mapping for each process, in order of their numbers.
    """
    found = []
    for name in dict.fromkeys(name for one in facts for name in one):
        values = [_shown(one.get(name, _ABSENT)) for one in facts]
        other = next((n for n, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            found.append(f"{name} is {values[0]} in process 0 and {values[other]} in process {other}")
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(found[:_SHOWN]) + more


def _shown(value: Any) -> str:
    return value if value == _ABSENT else json.dumps(value)


class Meeting:
    """The connections of this process: from process 0 to all others, from another to process 0.

    Args:
      me: the number of this process.
      sockets: by the number of the process at the other end.
    """

    def __init__(self, me: int, sockets: Mapping[int, socket.socket]):
        self.me, self._sockets = me, sockets
        self.reason = ""  # why another process ended
        self.ended = threading.Event()

    def watch(self, lost: Callable[[], None]) -> None:
        """Calls `lost` in a thread when another process ends before its work is done."""
        for number, other in self._sockets.items():
            threading.Thread(target=self._watch, args=(number, other, lost), daemon=True).start()

    def _watch(self, number: int, other: socket.socket, lost: Callable[[], None]) -> None:
        try:
            said = _receive(other)
        except (OSError, ValueError):
            said = {"reason": f"process {number} of this run died; start all again with --resume"}
        if "reason" in said and not self.ended.is_set():
            self.reason = said["reason"]
            self.ended.set()
            self._tell(said)
            lost()

    def tell_end(self, reason: str = "") -> None:
        """Tells the others that this process ends; a reason means that its work was not done."""
        self.ended.set()
        self._tell({"reason": f"process {self.me} ended: {reason}"} if reason else {"done": True})

    def _tell(self, message: Any) -> None:
        for other in self._sockets.values():
            with contextlib.suppress(OSError):  # already gone
                _send(other, message)


def meet(address: str, number: int, me: int, facts: Mapping[str, Any], patience: float) -> Meeting:
    """Returns when all processes have connected and agree.

    Args:
      address: HOST:PORT of process 0. number: of processes. me: the number of this one.
      facts: JSON; what must be equal in all of them.
      patience: seconds to wait.

    Raises:
      ValueError: a malformed address; a port that is in use; no process, too few or other programs connected; two have
        one number; or they do not agree. The message is the same in all that connected.
    """
    host, port = parse_address(address)
    own = {"hello": _HELLO, "process_id": me, "num_processes": number, "facts": facts}
    sockets = _gather(host, port, own, patience) if me == 0 else {0: _join(host, port, own, patience)}
    for other in sockets.values():  # notices a host that has lost power
        other.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, option):
                other.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return Meeting(me, sockets)


def _gather(host: str, port: int, own: dict[str, Any], patience: float) -> dict[int, socket.socket]:
    """Process 0: waits for all others."""
    deadline, number = time.monotonic() + patience, own["num_processes"]
    sockets: dict[int, socket.socket] = {}
    facts, refused = {0: own["facts"]}, ""
    with _listen(host, port) as server:
        while len(facts) < number and not refused:
            server.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                other = server.accept()[0]
            except TimeoutError:
                missing = ", ".join(str(n) for n in range(number) if n not in facts)
                refused = (
                    f"of {number} processes number {missing} did not connect to {host}:{port} within {patience:g} s; "
                    "start all of them, with the same --coordinator_address (--initialization_timeout waits longer)"
                )
                break
            said = _hello(other)
            if said is None:
                continue
            who, many = said["process_id"], said["num_processes"]
            if many != number:
                refused = f"--num_processes is {number} in process 0 and {many} in process {who}; give all the same"
            elif who in facts:
                refused = f"two processes have --process_id {who}; number them from 0 to {number - 1}"
            facts[who], sockets[who if who not in sockets else -1] = said["facts"], other
    if not refused and (found := differing([facts[n] for n in range(number)])):
        refused = f"the processes of a run must be started alike, but {found}. Give all of them the same"
    for other in sockets.values():
        with contextlib.suppress(OSError):
            _send(other, {"refused": refused})
    if refused:
        raise ValueError(refused)
    return sockets


def _listen(host: str, port: int) -> socket.socket:
    _resolve(host, port)
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        why = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise ValueError(
            f"process 0 cannot listen at port {port}: {why}; choose another --coordinator_address"
        ) from None


def _hello(other: socket.socket) -> dict[str, Any] | None:
    """What another process says about itself; None for another program."""
    try:
        other.settimeout(_PATIENCE)
        said = _receive(other)
        if said["hello"] != _HELLO:
            raise ValueError
        _send(other, {"hello": _HELLO})  # so that it can tell us from another program
        other.settimeout(None)
        return said
    except (OSError, ValueError, KeyError, TypeError):
        other.close()
        return None


def _join(host: str, port: int, own: dict[str, Any], patience: float) -> socket.socket:
    """Any other process: connects to process 0 and waits for its decision."""
    other = _connect(host, port, patience)
    at = f"{host}:{port}"
    try:
        other.settimeout(2 * _PATIENCE)
        _send(other, own)
        if _receive(other)["hello"] != _HELLO:
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"no process 0 waits at {at}: another program listens there, or a run that has begun; "
            "choose another --coordinator_address"
        ) from None
    try:
        other.settimeout(patience + _PATIENCE)
        refused = _receive(other)["refused"]
        other.settimeout(None)
    except (OSError, ValueError):
        raise ValueError(f"process 0 at {at} ended while it waited for the others; its own message says why") from None
    if refused:
        raise ValueError(refused)
    return other


def _connect(host: str, port: int, patience: float) -> socket.socket:
    deadline, why = time.monotonic() + patience, ""
    _resolve(host, port)
    while (left := deadline - time.monotonic()) > 0:
        try:
            return socket.create_connection((host, port), timeout=left)
        except OSError as error:
            why = error.strerror or "no answer"
        time.sleep(0.1)
    raise ValueError(
        f"no process 0 at {host}:{port} within {patience:g} s ({why.lower()}); check --coordinator_address, and start "
        "--process_id 0 on that host (--initialization_timeout waits longer)"
    )


def _resolve(host: str, port: int) -> None:
    try:
        socket.getaddrinfo(host, port)
    except (OSError, UnicodeError):
        raise ValueError(f"--coordinator_address: this machine cannot resolve the host {host!r}") from None


def _send(other: socket.socket, message: Any) -> None:
    other.sendall(json.dumps(message).encode() + b"\n")


def _receive(other: socket.socket) -> Any:
    """One line of JSON, an object.

    Raises:
      OSError: the connection is lost or silent. ValueError: it closed, or says something else.
    """
    line = bytearray()
    while not line.endswith(b"\n"):  # byte by byte: what follows the line belongs to the next call
        byte = other.recv(1)
        if not byte or len(line) > _LONGEST:
            raise ValueError("closed, or no message of ours")
        line += byte
    said = json.loads(line)
    if not isinstance(said, dict):
        raise ValueError("not an object")
    return said


def local_port(host: str, port: int) -> int:
    """A port of this machine that forwards to `host`. Its connections stay open when those to `host` close."""
    server, kept = socket.create_server(("127.0.0.1", 0)), []

    def serve():
        while True:
            near = server.accept()[0]
            far = _connect(host, port, _WAIT)
            far.settimeout(None)
            kept.append(near)  # an unreferenced socket would be closed
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=_carry, args=(source, target, source is near), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return server.getsockname()[1]


def _carry(source: socket.socket, target: socket.socket, closes: bool) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        if closes:
            target.shutdown(socket.SHUT_WR)
