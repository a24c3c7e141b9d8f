"""What a server refuses, with which status, and what a client that goes away leaves behind."""

import json
import threading

import httpx
import openai
import pytest

from nlrl_jax.config import OptionError
from nlrl_jax.run.serving.config import ServerConfig, bound
from tests.run.serving.running import running, scripted, serving, wait_until

ASKED = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30, "temperature": 0}
CHATS = "/chat/completions"


def test_other_machines_need_a_key(monkeypatch):
    with pytest.raises(ValueError, match="--host 0.0.0.0 lets other machines ask the model: give --api_key_env NAME"):
        ServerConfig(host="0.0.0.0")
    monkeypatch.setenv("EMPTY", "")
    for name in ("EMPTY", "NOT_THERE"):
        with pytest.raises(ValueError, match=f"--api_key_env {name}: that environment variable is not set, or empty"):
            ServerConfig(host="0.0.0.0", api_key_env=name)
    with pytest.raises(OptionError, match="port is 70000"):
        ServerConfig(port=70000)


def test_a_port_in_use_is_one_sentence():
    with bound(ServerConfig(port=0)) as first:
        first.listen()
        with pytest.raises(ValueError, match="cannot listen at 127.0.0.1:.*; give another --port"):
            bound(ServerConfig(port=first.getsockname()[1]))


@pytest.mark.parametrize("config", [{}, {"host": "127.0.0.1"}])
def test_a_key_is_wanted_of_everybody(config, monkeypatch):
    monkeypatch.setenv("SERVED_KEY", "secret")
    with scripted("Yes.", api_key_env="SERVED_KEY", **config) as (url, _):
        for key in ("wrong", "secret2", "geheim\u00fc"):
            with pytest.raises((openai.AuthenticationError, UnicodeEncodeError)):
                openai.OpenAI(base_url=url, api_key=key, max_retries=0).chat.completions.create(model="m", **ASKED)
        for path in ("/models", CHATS):
            answer = httpx.request("GET" if path == "/models" else "POST", url + path)
            assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
        client = openai.OpenAI(base_url=url, api_key="secret", max_retries=0)
        assert client.chat.completions.create(model="m", **ASKED).choices[0].message.content == "Yes."
        assert httpx.get(url.removesuffix("/v1") + "/health").status_code == 200


def test_a_name_that_leads_here_is_refused(url):
    answer = httpx.get(url + "/models", headers={"Host": "elsewhere.example"})
    assert answer.status_code == 400
    assert httpx.get(url.replace("127.0.0.1", "localhost") + "/models").status_code == 200


def test_a_body_that_is_too_large_or_no_json():
    with scripted("Yes.", max_body_mb=0.001) as (url, _):
        large = httpx.post(url + CHATS, content=b"x" * 1001)
        chunks = httpx.post(url + CHATS, content=(b"x" * 400 for _ in range(3)))  # without a Content-Length
        for answer in (large, chunks):
            assert answer.status_code == 413 and "larger than 0.001 MB" in answer.json()["error"]["message"]
        for content in (b"{", b"[]", b"\xff", b"[" * 900, b"", rb'{"prompt": "\ud800"}'):
            answer = httpx.post(url + CHATS, content=content)
            assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"
        assert httpx.post(url + CHATS, json=ASKED).status_code == 200


def test_unknown_paths_and_methods_are_json(url):
    message = httpx.get(url + "/nothing").json()["error"]["message"]
    assert message.startswith("GET /v1/nothing: Not Found; there are /v1/chat/completions, /v1/completions, /v1/models")
    answer = httpx.get(url + CHATS)
    assert answer.status_code == 405 and "error" in answer.json()


def test_a_reply_may_have_a_limit_of_the_servers():
    with scripted("Yes.", "Yes.", max_reply_tokens=20) as (url, _):
        answer = httpx.post(url + CHATS, json={**ASKED, "max_tokens": 21})
        assert answer.status_code == 400 and "at most 20 tokens a reply" in answer.json()["error"]["message"]
        assert httpx.post(url + CHATS, json={**ASKED, "max_tokens": None}).status_code == 200


def test_too_many_requests_at_once():
    with scripted(None, "Yes.", max_requests=1) as (url, worker):
        with httpx.stream("POST", url + CHATS, json={**ASKED, "stream": True}) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
            with pytest.raises(openai.RateLimitError, match="1 requests are under way") as error:
                client.chat.completions.create(model="m", **ASKED)
            assert error.value.response.headers["Retry-After"] == "1"
        # The client of the first has gone: its place and its row are free.
        assert worker.cancelled.wait(20)
        patient = openai.OpenAI(base_url=url, api_key="none", max_retries=5)
        assert patient.chat.completions.create(model="m", **ASKED).choices[0].message.content == "Yes."


def test_a_client_that_does_not_stream_and_goes_frees_its_place():
    with scripted(None, "Yes.", max_requests=1) as (url, worker):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url + CHATS, json=ASKED, timeout=0.3)
        assert worker.cancelled.wait(20)
        wait_until(lambda: httpx.post(url + CHATS, json=ASKED).status_code == 200)


def test_a_model_that_fails_is_an_error_of_the_server_and_the_next_one_is_answered(local, monkeypatch):
    server, failures = serving(local), [RuntimeError("no memory")]
    write = server.worker._write
    with running(server) as url:
        monkeypatch.setattr(server.worker, "_write", lambda jobs: write(jobs) if not failures else _raise(failures))
        answer = httpx.post(url + CHATS, json=ASKED)
        assert answer.status_code == 500 and answer.json()["error"]["message"] == "the model failed"
        failures.append(RuntimeError("no memory"))
        lines = httpx.post(url + CHATS, json={**ASKED, "stream": True}).text.strip().split("\n\n")
        assert json.loads(lines[0].removeprefix("data: "))["error"]["type"] == "server_error"
        assert lines[-1] == "data: [DONE]"
        assert httpx.post(url + CHATS, json=ASKED, timeout=60).status_code == 200


def _raise(failures):
    raise failures.pop()


def test_a_server_that_ends_says_so(local):
    server = serving(local)
    with running(server) as url, httpx.Client() as client:
        assert client.get(url + "/models").status_code == 200  # a connection that stays
        server.worker.__exit__()
        answer = client.post(url + CHATS, json=ASKED)
        assert answer.status_code == 503 and answer.json()["error"]["message"] == "the server is shutting down"
    server.worker._thread = threading.Thread()


def test_what_is_under_way_is_answered_before_the_end():
    with scripted("A long answer, written while the server is told to end.") as (url, _):
        with httpx.stream("POST", url + CHATS, json={**ASKED, "stream": True}, timeout=20) as stream:
            lines = stream.iter_lines()
            first = next(lines)
            text = "\n".join([first, *lines])
    assert text.rstrip().endswith("data: [DONE]")
