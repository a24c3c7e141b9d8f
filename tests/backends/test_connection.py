"""Through which proxy a server is reached, by the environment, and what is said where that does not work."""

import pytest

from nlrl_jax.backends.connection import proxy_of
from nlrl_jax.backends.endpoint_checks import check_answers
from nlrl_jax.backends.transport import EndpointError
from nlrl_jax.types import Chat
from tests.backends.endpoints import HOT, model
from tests.backends.server import Server

NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD", "SSL_CERT_FILE", "SSL_CERT_DIR")
DEAD = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    "url, no_proxy, direct",
    [  # as Go's httpproxy and curl 7.86 read it
        ("http://[::1]:8000/v1", "::1/128", True),
        ("http://[::1]:8000/v1", "[::1]", True),
        ("http://[::1]:8000/v1", "[::1]:8000", True),
        ("http://[::1]:8000/v1", "[::1]:8001", False),
        ("http://[fd00::5]/v1", "127.0.0.1,fd00::/8", True),
        ("http://[2001:db8::5]/v1", "fd00::/8", False),
        ("http://[fe80::1%25eth0]/v1", "fe80::/10", True),
        ("http://[::ffff:10.1.2.3]/v1", "10.0.0.0/8", True),
        ("http://127.0.0.1:8000/v1", "::1/128", False),
        ("http://127.0.0.1:8000/v1", "127.0.0.0/8", True),
        ("http://127.0.0.1:8000/v1", "127.0.0.1:8000", True),
        ("http://127.0.0.1:8000/v1", "127.0.0.1:80", False),
        ("http://10.1.2.3/v1", "localhost 10.0.0.0/8", True),
        ("http://10.1.2.3/v1", "10.1.2.9/24", True),
        ("http://11.1.2.3/v1", "10.0.0.0/8", False),
        ("http://10.1.2.3/v1", "10.1.2", False),
        ("http://a.example.com/v1", "example.com", True),
        ("http://a.example.com/v1", ".example.com", True),
        ("http://a.example.com/v1", "*.EXAMPLE.com:80", True),
        ("https://a.example.com/v1", "example.com:443", True),
        ("http://badexample.com/v1", "example.com", False),
        ("http://a.example.com./v1", "a.example.com", True),
        ("http://a.example.com/v1", "http://a.example.com/", True),
        ("http://a.example.com/v1", "a b,;c, *", True),
        ("http://a.example.com/v1", ", ,/ : [] :: %", False),
        ("http://a.example.com/v1", "", False),
    ],
)
def test_no_proxy(url, no_proxy, direct, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", DEAD)
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert (proxy_of(url) is None) == direct


@pytest.mark.parametrize(
    "variables, wanted",
    [
        ({"HTTP_PROXY": "proxy:3128"}, ("HTTP_PROXY", "http://proxy:3128")),
        ({"HTTP_PROXY": "http://a:1", "http_proxy": "http://b:1"}, ("http_proxy", "http://b:1")),
        ({"HTTP_PROXY": "http://a:1", "http_proxy": ""}, None),
        ({"HTTP_PROXY": " ", "ALL_PROXY": "https://u:secret@c:1"}, ("ALL_PROXY", "https://u:secret@c:1")),
        ({"HTTPS_PROXY": "http://a:1"}, None),
        ({"HTTP_PROXY": "http://a:1", "REQUEST_METHOD": "GET"}, None),
        ({"HTTP_PROXY": "http://a:1", "no_proxy": "*"}, None),
    ],
)
def test_which_variable_counts(variables, wanted, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    proxy = proxy_of("http://server/v1")
    assert (proxy and (proxy.variable, proxy.address)) == wanted
    assert "secret" not in f"{proxy} {proxy!r}"


@pytest.mark.parametrize(
    "value",
    ["foo:bar", "ftp://x:1", "http://", "http://u:secret@[::1", "socks4://x:1", "http://a b:1", "me:secret@x:y"],
)
def test_what_is_no_proxy_is_named_with_its_variable(value, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", value)
    with Server() as server, pytest.raises(ValueError, match=r"^\$HTTP_PROXY is '.*must look like http") as caught:
        model(server).complete([Chat.of("x")], HOT, "policy")
    assert "secret" not in str(caught.value) and not server.requests


@pytest.mark.parametrize("value", ["socks5://127.0.0.1:9", "socks5h://127.0.0.1:9", "socks://127.0.0.1:9/"])
def test_a_socks_proxy_without_socksio_is_named_with_its_variable(value, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("all_proxy", value)
    with pytest.raises(ValueError, match=r"\$all_proxy names a SOCKS proxy, which needs socksio: pip install"):
        proxy_of("http://server/v1")


def test_a_dead_proxy_is_named_with_its_variable(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@127.0.0.1:9")
    named = r"through the proxy http://127.0.0.1:9 that \$HTTP_PROXY names"
    with Server() as server:
        with pytest.raises(EndpointError, match=named) as caught:
            model(server, max_retries=1).complete([Chat.of("x")], HOT, "policy")
        with pytest.raises(EndpointError, match=rf"{named}.*Start that proxy, unset .*127.0.0.1 in \$NO_PROXY"):
            check_answers(model(server))
        assert not server.requests and "secret" not in str(caught.value)
        monkeypatch.setenv("NO_PROXY", "::1/128,127.0.0.0/8")
        check_answers(model(server))


def test_a_proxy_is_used_and_named_where_it_refuses(monkeypatch):
    with Server(behaviour=None) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1").removeprefix("http://"))
        ask = model(proxy, base_url="http://server.test/v1")
        ask.complete([Chat.of("x")], HOT, "policy")
        assert proxy.requests[0].path == "http://server.test/v1/chat/completions"
        proxy.behaviour = lambda request: lambda handler, _: handler.send_error(407)
        with pytest.raises(EndpointError, match=r"407 \(through the proxy .*unset \$http_proxy"):
            ask.complete([Chat.of("x")], HOT, "policy")


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_certificates_that_cannot_be_read_are_named_with_their_variable(content, tmp_path, monkeypatch):
    path = tmp_path / "certificates.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    if content:
        path.write_text(content)
    with Server() as server, pytest.raises(ValueError, match=r"\$SSL_CERT_FILE is '.*certificates.pem'"):
        model(server).complete([Chat.of("x")], HOT, "policy")
