"""Endpoints in tests have a key, no proxy, and short waits between attempts."""

import pytest

from nlrl_jax.backends import transport
from tests.backends.endpoints import KEY


@pytest.fixture(autouse=True)
def endpoint_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(transport, "BACKOFF", 0.01)
    monkeypatch.setattr(transport, "LONGEST_WAIT", 0.05)
