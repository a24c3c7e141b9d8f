"""How an endpoint is reached, as options of a script."""

from __future__ import annotations

import dataclasses
import re
import urllib.parse
from typing import Any

from nlrl_jax.config import OptionError, assignments, check, option

# Options of an endpoint that do not change what is computed: a resumed run may have others.
MAY_CHANGE = ("base_url", "api_key_env", "concurrency", "timeout", "max_retries", "token_budget")
_RESERVED = ("model", "messages", "prompt", "n", "stream", "echo", "logprobs")
_MAY_BE_NULL = ("model", "n", "stream")  # of these


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
        fields = assignments("extra", self.extra)
        for name, value in fields.items():
            if name in _RESERVED and not (value is None and name in _MAY_BE_NULL):
                raise OptionError(f"extra sets {name}, which depends on the request; leave it out")
        return fields
