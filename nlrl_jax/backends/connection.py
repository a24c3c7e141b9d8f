"""Connections to a server: with which key, through which proxy, and a deadline for all of a request.

The environment says which proxy, as curl and Go read it: NO_PROXY may hold hosts, domains, ports, addresses and
networks (10.0.0.0/8, ::1/128). httpx reads most of these forms otherwise, or not at all.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import ipaddress
import json
import os
import re
import threading
import time
import urllib.parse
from typing import Any

import httpx

_PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")


class ApiKey:
    """A key from an environment variable. Neither `repr` nor a traceback that prints variables shows it."""

    def __init__(self, variable: str):
        """Raises ValueError: an HTTP header cannot hold the variable's value."""
        self.variable = variable
        self._value = os.environ.get(variable, "").strip() if variable else ""
        if not all("!" <= letter <= "~" for letter in self._value):
            raise ValueError(f"the key in ${variable} has blanks or letters outside ASCII; set it to the bare key")

    def __repr__(self) -> str:
        return f"ApiKey(${self.variable}, {'set' if self._value else 'not set'})"

    def headers(self) -> httpx.Headers:
        return httpx.Headers({"Authorization": f"Bearer {self._value}"} if self._value else {})

    def hide(self, text: str) -> str:
        """The text with the key blotted out, plain or as JSON writes it."""
        escaped = json.dumps(self._value)[1:-1]
        for form in {self._value, escaped, escaped.replace("/", "\\/")} - {""}:
            text = text.replace(form, "[key hidden]")
        return text


@dataclasses.dataclass(frozen=True)
class Proxy:
    """A proxy. variable: the environment variable that names it. address: its URL. host: whose requests it takes."""

    variable: str
    address: str = dataclasses.field(repr=False)
    host: str

    @property
    def advice(self) -> str:
        return f"Start that proxy, unset ${self.variable}, or name {self.host} in $NO_PROXY"

    def __str__(self) -> str:
        return f"through the proxy {_without_user(self.address)} that ${self.variable} names"


def proxy_of(url: str) -> Proxy | None:
    """The proxy that the environment gives for a server's address; None where it is reached directly.

    Raises:
      ValueError: names the variable, whose value is no proxy's address, or a SOCKS proxy's without socksio.
    """
    server = urllib.parse.urlsplit(url)
    setting = _variable(f"{server.scheme}_proxy") or _variable("all_proxy")
    if setting is None or _is_direct(server, (_variable("no_proxy") or ("", ""))[1]):
        return None
    variable, address = setting
    address = address if "://" in address else f"http://{address}"
    address = re.sub("^socks://", "socks5://", address, flags=re.IGNORECASE)  # as desktops write it
    form = "http://HOST:PORT or socks5://HOST:PORT"
    wrong = f"${variable} is {_without_user(setting[1])!r}; it must look like {form}, or be unset"
    try:
        proxy = urllib.parse.urlsplit(address)
        if proxy.scheme not in _PROXY_SCHEMES or not proxy.hostname or proxy.port == 0 or re.search(r"\s", address):
            raise ValueError(wrong)
        httpx.Proxy(address)
    except (ValueError, httpx.InvalidURL):
        raise ValueError(wrong) from None
    if proxy.scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise ValueError(
            f"${variable} names a SOCKS proxy, which needs socksio: pip install 'httpx[socks]'; or unset ${variable}, "
            f"or name {server.hostname} in $NO_PROXY"
        )
    return Proxy(variable, address, server.hostname)


def _variable(name: str) -> tuple[str, str] | None:
    """(name, value) of a variable that is set and not empty; the name in small letters comes first."""
    for spelling in (name, name.upper()):
        is_header = spelling == "HTTP_PROXY" and "REQUEST_METHOD" in os.environ  # CGI's, of a client's request
        if spelling in os.environ and not is_header:
            value = os.environ[spelling].strip()
            return (spelling, value) if value else None
    return None


def _without_user(address: str) -> str:
    return re.sub(r"(^|//)[^/]*@", r"\1", address)


def _is_direct(server: urllib.parse.SplitResult, no_proxy: str) -> bool:
    """Whether NO_PROXY names a server."""
    host, port = server.hostname.rstrip("."), server.port or {"http": 80, "https": 443}[server.scheme]
    address = _network(host)
    for entry in re.split(r"[\s,;]+", no_proxy.lower()):
        entry = entry.rpartition("://")[2].rstrip("/")
        if entry == "*":
            return True
        # "host:port" or "[ipv6]:port"; a bare IPv6 address has more than one colon.
        if _network(entry) is None and (match := re.fullmatch(r"(.*[^:]|\[.*\]):(\d+)", entry)):
            if int(match[2]) != port:
                continue
            entry = match[1]
        # ".domain", "*.domain" and "domain" mean the domain and all below it.
        name, network = entry.lstrip("*").strip("."), _network(entry)
        if network is not None:
            if address is not None and address.version == network.version and address.subnet_of(network):
                return True
        elif name and (host == name or host.endswith(f".{name}")):
            return True
    return False


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """An address, or a network, without brackets and zone; None where it is a name. ::ffff:10.0.0.1 is 10.0.0.1."""
    entry = re.sub(r"^\[([^\]]*)\](?=/|$)", r"\1", re.sub(r"%[^/\]]*", "", entry))
    try:
        network = ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    return ipaddress.ip_network(mapped) if mapped and network.num_addresses == 1 else network


class Deadlines:
    """A network backend of httpcore's whose calls end with the request's time, where its own time-outs are for each
    piece that arrives: a server that sends a byte a second, in the head or in the body, would never end.

    Args:
      inner: the backend that does the work.
    """

    def __init__(self, inner: Any):
        self._inner, self._of_thread = inner, threading.local()

    def start(self, seconds: float) -> None:
        """Gives the next request of this thread so many seconds."""
        self._of_thread.end = time.monotonic() + seconds

    def left(self, timeout: float | None) -> float:
        """Raises TimeoutError: there is no time left."""
        seconds = self._of_thread.end - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds if timeout is None else min(seconds, timeout)

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, **options: Any) -> Any:
        return _Stream(self._inner.connect_tcp(host, port, self.left(timeout), **options), self)


class _Stream:
    """A connection whose calls end with the request's time."""

    def __init__(self, inner: Any, deadlines: Deadlines):
        self._inner, self._deadlines = inner, deadlines

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, self._deadlines.left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for i in range(0, len(buffer), 1 << 16):  # each piece has a deadline, of a long prompt too
            self._inner.write(buffer[i : i + (1 << 16)], self._deadlines.left(timeout))

    def start_tls(self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None) -> _Stream:
        inner = self._inner.start_tls(ssl_context, server_hostname, self._deadlines.left(timeout))
        return _Stream(inner, self._deadlines)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def client(
    proxy: Proxy | None, headers: httpx.Headers, timeout: float, connections: int
) -> tuple[httpx.Client, Deadlines]:
    """A client whose requests end in time, once `Deadlines.start` has been called.

    Raises:
      ValueError: SSL_CERT_FILE or SSL_CERT_DIR names no certificates.
    """
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    try:
        transport = httpx.HTTPTransport(limits=limits, proxy=proxy and proxy.address)
    except OSError as error:
        named = {name: os.environ[name] for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)}
        variables = " and ".join(f"${name} is {value!r}" for name, value in named.items())
        raise ValueError(f"{variables or 'the certificates'}: no certificates can be read there ({error})") from None
    # httpx has no public way to a pool's backend.
    deadlines = transport._pool._network_backend = Deadlines(transport._pool._network_backend)
    return httpx.Client(headers=headers, timeout=timeout, transport=transport), deadlines
