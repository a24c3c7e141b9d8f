"""A session with an OpenEnv server: one environment, over a WebSocket."""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Mapping
from typing import Any

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

_LARGEST = 100 << 20  # bytes of a message
_CAPACITY = "CAPACITY_REACHED"


class Session:
    """An environment on the server."""

    def __init__(self, address: str, patience: float):
        url = address.replace("http", "ws", 1) if address.startswith("http") else address
        self.address, self.patience = address, patience
        try:
            self.socket = connect(f"{url}/ws", open_timeout=patience, max_size=_LARGEST, proxy=None)
        except (OSError, WebSocketException) as error:
            raise ConnectionError(f"the server {address} does not answer: {error}") from None
        weakref.finalize(self, _close, self.socket)  # also where the horizon cuts an episode off

    def ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Asks for a "reset" or a "step", and returns observation, reward and done.

        Raises:
          ConnectionError, TimeoutError: the server is lost, or late. ValueError: it refuses.
        """
        try:
            # A server that refuses a session says why, and closes it, maybe before it is asked.
            with contextlib.suppress(ConnectionClosed):
                self.socket.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(self.socket.recv(timeout=self.patience))
        except TimeoutError:
            self.close()
            raise TimeoutError(f"the server {self.address} took longer than {self.patience:g} s for a {kind}") from None
        except (OSError, WebSocketException) as error:
            raise ConnectionError(f"the server {self.address} was lost: {error}") from None
        if answer.get("type") == "error":
            fault = answer.get("data", {})
            advice = "; let it allow as many as there are episodes at a time" if fault.get("code") == _CAPACITY else ""
            raise ValueError(f"the server {self.address} refused: {fault.get('message', fault)}{advice}")
        return answer["data"]

    def close(self) -> None:
        _close(self.socket)


def _close(socket: ClientConnection) -> None:
    with contextlib.suppress(Exception):
        socket.close()
