"""How an endpoint is reached, as options of a script."""

from __future__ import annotations

import dataclasses
from typing import Any

from nlrl_jax.config import OptionError, assignments, check, option

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
    token_budget: int = option(0, "endpoint: maximum tokens, read and written, of the run; 0: no limit", least=0)

    def __post_init__(self):
        check(self)
        self.extra_fields()

    def extra_fields(self) -> dict[str, Any]:
        """`extra` as a mapping. A value that is not JSON is a string."""
        fields = assignments("extra", self.extra)
        reserved = [name for name in fields if name in _RESERVED]
        if reserved:
            raise OptionError(f"extra sets {reserved[0]}, which depends on the request; leave it out")
        return fields
