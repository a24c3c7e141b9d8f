"""One server over a tiny model for all tests of serving."""

import openai
import pytest

from tests.run.serving.running import running, serving, tiny


@pytest.fixture(scope="session")
def local():
    return tiny()


@pytest.fixture(scope="session")
def url(local):
    with running(serving(local)) as url:
        yield url


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="session")
def client(url):
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
