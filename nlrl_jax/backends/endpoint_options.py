"""How an endpoint is reached, as options of a script."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from nlrl_jax.config import OptionError, check, option

_RESERVED = ("model", "messages", "prompt", "n", "stream", "echo", "logprobs")


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
        "", "endpoint: fields for every request, such as reasoning_effort=low,seed=null; null leaves a field out"
    )
    token_budget: int = option(
        0, "endpoint: maximum tokens, read and written, of the run; 0: no limit", least=0, most=10**15
    )

    def __post_init__(self):
        check(self)
        self.extra_fields()

    def extra_fields(self) -> dict[str, Any]:
        """`extra` as a mapping. A value that is not JSON is a string."""
        fields, rest, decoder = {}, self.extra, json.JSONDecoder()
        while rest.strip():
            name, equals, rest = rest.partition("=")
            try:
                value, end = decoder.raw_decode(rest)
                is_json = rest[end : end + 1] in ("", ",")
            except ValueError:
                is_json = False
            if is_json:
                rest = rest[end + 1 :]
            else:
                value, _, rest = rest.partition(",")
            name = name.strip()
            if not equals or not name.isidentifier():
                raise OptionError(f"extra is {self.extra!r}; it must be field=value, several separated by commas")
            if name in _RESERVED:
                raise OptionError(f"extra sets {name}, which depends on the request; leave it out")
            fields[name] = value
        return fields
