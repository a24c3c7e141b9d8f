"""How an endpoint is reached, as options of a script."""

from __future__ import annotations

import dataclasses
import json
import re
import urllib.parse
from typing import Any

from nlrl_jax.config import OptionError, check, option

# Options of an endpoint that do not change what is computed: a resumed run may have others.
MAY_CHANGE = ("base_url", "api_key_env", "concurrency", "timeout", "max_retries", "token_budget")
_RESERVED = ("model", "messages", "prompt", "n", "stream", "echo", "logprobs")
_MAY_BE_NULL = ("model", "n", "stream")  # of these
_NOT_JSON = {"None": "null", "True": "true", "False": "false", "NaN": "null"}


@dataclasses.dataclass(frozen=True)
class EndpointOptions:
    """How an OpenAI-compatible server is reached, and what it may cost.

    Raises:
      OptionError: a value outside its bounds, or an `extra` that cannot be read.
    """

    base_url: str = option("", "an endpoint's address, such as http://localhost:8000/v1")
    api_key_env: str = option("OPENAI_API_KEY", "endpoint: the environment variable that holds the key")
    concurrency: int = option(16, "endpoint: maximum number of simultaneous requests", least=1, most=1024)
    timeout: float = option(120.0, "endpoint: seconds for one attempt at a request", above=0, most=86400)
    max_retries: int = option(6, "endpoint: further attempts after a failed request", least=0, most=1000)
    extra: str = option(
        "",
        "endpoint: fields for every request, such as reasoning_effort=low,seed=null, or one JSON object; null leaves a "
        "field out",
    )
    token_budget: int = option(
        0, "endpoint: maximum tokens, read and written, of the run; 0: no limit", least=0, most=10**15
    )

    def __post_init__(self):
        check(self)
        self.extra_fields()

    @property
    def url(self) -> str:
        """The address without a slash at its end."""
        return self.base_url.strip().rstrip("/")

    def check_address(self) -> None:
        """Raises ValueError: no address, one with a secret in it, or one that is not a server's."""
        if not self.url:
            raise ValueError("an endpoint needs an address (--base_url http://.../v1) and the name of its model")
        looks = f"base_url is {self.base_url!r}; it must look like http://localhost:8000/v1"
        try:
            url = urllib.parse.urlsplit(self.url)
            port = url.port  # a property that raises
        except ValueError as error:
            raise ValueError(f"{looks} ({error})") from None
        if url.username or url.password or url.query or url.fragment:
            raise ValueError("base_url must hold no user, password, query or fragment; put the key in the environment")
        if url.scheme not in ("http", "https") or not url.hostname or port == 0 or re.search(r"\s", self.url):
            raise ValueError(looks)
        for path in ("/chat/completions", "/completions", "/models"):
            if self.url.endswith(path):
                raise ValueError(f"base_url is {self.base_url!r}; leave out {path}: {self.url.removesuffix(path)}")

    def extra_fields(self) -> dict[str, Any]:
        """`extra` as a mapping: field=value,... or one JSON object. A value that is not JSON is a string."""
        if self.extra.lstrip().startswith("{"):
            try:
                pairs = [*_DECODER.decode(self.extra.strip()).items()]
            except ValueError as error:
                raise OptionError(f"extra is {self.extra!r}, which is no JSON object ({error})") from None
        else:
            pairs = self._pairs()
        fields: dict[str, Any] = {}
        for name, value in pairs:
            if not name.isidentifier():
                raise OptionError(f"extra is {self.extra!r}; it must be field=value, several separated by commas")
            if name in _RESERVED and not (value is None and name in _MAY_BE_NULL):
                raise OptionError(f"extra sets {name}, which depends on the request; leave it out")
            if name in fields:
                raise OptionError(f"extra is {self.extra!r}, which sets {name} twice; give it once")
            fields[name] = value
        return fields

    def _pairs(self) -> list[tuple[str, Any]]:
        pairs, rest = [], self.extra.strip()
        while rest:
            name, equals, rest = (part.lstrip() for part in rest.partition("="))
            if not equals:
                raise OptionError(f"extra is {self.extra!r}; it must be field=value, several separated by commas")
            try:
                value, end = _DECODER.raw_decode(rest)
                after = rest[end:].lstrip()
                is_json = after[:1] in ("", ",")
            except ValueError:
                is_json = False
            if is_json:
                rest = after[1:].lstrip()
            else:
                value, _, rest = (part.strip() for part in rest.partition(","))
                if value in _NOT_JSON:
                    raise OptionError(f"extra is {self.extra!r}; write {_NOT_JSON[value]} for {value}")
                if value[:1] in ("{", "[", '"'):
                    raise OptionError(f"extra is {self.extra!r}; the value of {name.strip()} is no whole JSON: {value}")
            pairs.append((name.strip(), value))
        return pairs


def _finite(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_finite)
