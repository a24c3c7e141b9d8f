"""What is asked of an endpoint before a run: one message, before there is a folder or a thread."""

import contextlib
import re
import socket
import threading

import pytest

from nlrl_jax.backends import endpoint_checks
from nlrl_jax.backends.transport import EndpointError
from nlrl_jax.run import directory
from nlrl_jax.types import Chat, Sampling
from tests.backends import server as s
from tests.backends.endpoints import KEY, nowhere, of_a_run
from tests.backends.server import Server


def check(url, **options):
    endpoint_checks.check_answers(nowhere(base_url=url, timeout=5.0, max_retries=3, **options))


def refusal(url, **options):
    with pytest.raises(EndpointError) as error:
        check(url, **options)
    assert KEY not in str(error.value) and "\n" not in str(error.value)
    return str(error.value)


def test_a_server_that_answers_passes_with_one_small_request():
    with Server() as server:
        check(server.url)
        check(server.url + "/")
        first, second = server.requests
        assert first.path == second.path == "/v1/chat/completions"
        sure = {"temperature": 1.0, "top_p": 1.0}  # a server that refuses these defaults is asked without them
        message = {"role": "user", "content": "Hi"}
        assert first.body == {"model": "m", "messages": [message], "max_tokens": 16, **sure}


@pytest.mark.parametrize(
    "behaviour, says",
    [
        (s.echo_key(401), r"does not accept the key.*\$OPENAI_API_KEY"),
        (s.echo_key(403), r"does not accept the key.*\$OPENAI_API_KEY"),
        (s.status(404, '{"error": "The model `m` does not exist"}'), "The model `m` does not exist.*the model's name"),
        (s.raw(b"<!DOCTYPE html><html>Welcome</html>"), "Welcome.*Check --base_url: it usually ends in /v1"),
        (s.raw(b'{"status": "ok"}'), "Check --base_url"),
        (s.raw(b'{"choices": []}'), "no list of choices, or an empty one"),
        (s.raw(b'{"error": {"message": "no such model"}}'), "no such model"),
        (s.status(307, "", Location="http://elsewhere/v1"), "redirects to http://elsewhere/v1"),
        (s.status(400, "max_tokens too small"), "max_tokens too small"),
        (s.closed, "does not speak HTTP"),
    ],
)
def test_errors_are_reported_at_once(behaviour, says):
    with Server(behaviour=lambda request: behaviour) as server:
        assert re.search(says, refusal(server.url))
        assert len(server.requests) <= 2


def test_connection_refused_and_no_such_host():
    with Server() as server:
        url = server.url
    assert re.search(r"ConnectError.*Nothing listens at 127.0.0.1:\d+", refusal(url))
    assert "There is no host 'nowhere.invalid'" in refusal("http://nowhere.invalid/v1")
    with Server() as server:
        assert "does not speak TLS: try --base_url http://127" in refusal(server.url.replace("http", "https"))


def test_http_to_a_port_that_speaks_something_else():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(b"\x15\x03\x01\x00\x02\x02\x0a")  # a TLS alert

        threading.Thread(target=answer, daemon=True).start()
        port = listener.getsockname()[1]
        assert f"try --base_url https://127.0.0.1:{port}" in refusal(f"http://127.0.0.1:{port}/v1")


def test_a_missing_v1_is_proposed():
    there = lambda request: s.well if request.path == "/v1/chat/completions" else s.status(404, "not found")
    with Server(behaviour=there) as server:
        assert f"--base_url {server.url}" in refusal(server.url.removesuffix("/v1"))
    with Server(behaviour=lambda request: s.status(404, "not found")) as server:
        assert "Check --base_url" in refusal(server.url.removesuffix("/v1"))


def test_a_busy_server_is_retried():
    with Server(s.status(503, "loading"), s.status(429, Retry_After="0")) as server:
        check(server.url)
        assert len(server.requests) == 3
    with Server(behaviour=lambda request: s.status(500, "broken")) as server:
        assert "failed 4 times, the last time with: status 500: 'broken'" in refusal(server.url)


def test_a_run_that_got_no_reply_leaves_its_folder_free(tmp_path):
    """Also where the small request passed, and the run's first one does not."""
    config = {"script": "x", "base_url": "http://wrong/v1"}
    directory.open_run(tmp_path, config)
    with Server(behaviour=lambda request: s.status(400, "temperature")) as server:
        ask = of_a_run(server.url, tmp_path)
        with pytest.raises(EndpointError):
            ask.complete([Chat.of("hi")], Sampling(5, 0.5), "r")
    directory.close_run(tmp_path)
    directory.open_run(tmp_path, {**config, "base_url": "http://right/v1"})
    with Server() as server:
        ask = of_a_run(server.url, tmp_path)
        ask.complete([Chat.of("hi")], Sampling(5, 0.5), "r")
    directory.close_run(tmp_path)
    with pytest.raises(ValueError, match="already holds a run"):
        directory.open_run(tmp_path, config)


def test_a_resumed_run_may_have_another_address_and_keeps_its_replies(tmp_path):
    changes = {"base_url": "http://b/v1", "api_key_env": "B", "concurrency": 2, "timeout": 9.0, "max_retries": 1}
    config = {"base_url": "http://a/v1", "api_key_env": "A", "concurrency": 1, "timeout": 1.0, "max_retries": 0}
    directory.open_run(tmp_path, {**config, "token_budget": 5})
    directory.close_run(tmp_path)
    directory.open_run(tmp_path, {**changes, "token_budget": 6}, resume=True, may_change=())
    directory.close_run(tmp_path)
    replies = []
    for _ in range(2):
        with Server() as server:
            replies += of_a_run(server.url, tmp_path).complete([Chat.of("hi")], Sampling(5, 0.0), "r")
    assert [reply.cached for reply in replies] == [False, True]
