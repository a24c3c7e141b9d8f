"""Where a server listens, and what it takes at most."""

from __future__ import annotations

import dataclasses
import os
import socket

from nlrl_jax.config import check, option

LOOPBACK = "127.0.0.1"


@dataclasses.dataclass(frozen=True)
class ServerConfig:
    """Where a server listens, and what it takes at most."""

    port: int = option(8000, "port to listen at; 0: any free one", least=0, most=65535)
    host: str = option(
        "", "address to listen at, such as 0.0.0.0, which needs --api_key_env; empty: this machine alone"
    )
    api_key_env: str = option("", "environment variable that holds the key that clients must send; empty: no key")
    max_requests: int = option(256, "requests at once; more are refused with status 429", least=1)
    max_body_mb: float = option(16.0, "megabytes of a request; more are refused with status 413", above=0)
    max_reply_tokens: int = option(0, "tokens of a reply, at most; 0: what the model's context has room for", least=0)
    drain_seconds: int = option(30, "seconds that requests under way have at SIGTERM", least=0)

    def __post_init__(self):
        check(self)
        if self.host and not self.api_key_env:
            raise ValueError(
                f"--host {self.host} lets other machines ask the model: give --api_key_env NAME, the environment "
                "variable that holds the key that they must send"
            )
        if self.api_key_env and not os.environ.get(self.api_key_env):
            raise ValueError(f"--api_key_env {self.api_key_env}: that environment variable is not set, or empty")

    @property
    def api_key(self) -> str:
        """The key that clients must send; "" for none."""
        return os.environ.get(self.api_key_env, "") if self.api_key_env else ""


def bound(config: ServerConfig) -> socket.socket:
    """A socket at the config's address, before there is a model to answer at it.

    Raises:
      ValueError: the address cannot be used.
    """
    host = config.host or LOOPBACK
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, config.port))
    except OSError as error:
        listener.close()
        raise ValueError(
            f"cannot listen at {host}:{config.port}: {error.strerror or error}; give another --port"
        ) from None
    return listener
