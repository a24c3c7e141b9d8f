"""Endpoint models on a test server, and what the tests of endpoints ask of them."""

from nlrl_jax.backends.endpoint import EndpointModel
from nlrl_jax.backends.endpoint_options import EndpointOptions
from nlrl_jax.backends.usage import Usage
from nlrl_jax.run import endpoints, models
from nlrl_jax.types import Chat, Sampling

KEY = "sk-proj-9f8e7d6c5b4a32100123456789abcdef"
GREEDY = Sampling(max_tokens=20, temperature=0.0)
HOT = Sampling(max_tokens=20, temperature=1.0)


def model(server, name="m", usage=None, cache=None, render=None, abilities=None, **options):
    options = EndpointOptions(**{"base_url": server.url, "max_retries": 3, "timeout": 20.0, **options})
    return EndpointModel(options, name, usage or Usage(), cache, render, abilities=abilities)


def of_a_run(url, run_dir, needs=None, **options):
    """The model as a script makes it, with a ledger on disk and a cache."""
    endpoint = endpoints.Endpoint(url, **{"endpoint_model": "m", **options})
    return models.large_model("endpoint", {}, run_dir, models.ledger(run_dir), endpoint, needs)


def render(messages):
    return "|".join(message["content"] for message in messages)


def nowhere(**options):
    return EndpointModel(EndpointOptions(**{"base_url": "http://127.0.0.1:9/v1", **options}), "m")


def entries(cache):
    return len([*cache.folder.glob("*/*.json")])


def spent(ask):
    """The ledger's row of the role."""
    (row,) = ask.usage.rows()
    return row


def chats(n):
    return [Chat.of(f"question {i}", system="rules") for i in range(n)]


def questions(n):
    return [f"question {i}" for i in range(n)]


def texts(replies):
    return [reply.text for reply in replies]
