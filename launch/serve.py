"""Serves a model, or what a run has trained, to any client of the OpenAI API.

    nlrl-jax serve --model smollm2 --port 8000
    nlrl-jax serve --adapter runs/demo --port 8000        # the run's model with its latest checkpoint
    curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
        -d '{"messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 40}'

Concurrent requests are written as one batch. Only this machine can connect unless --host says otherwise, which needs
--api_key_env. docs/serving.md says what is supported. Needs nlrl_jax[serve].
"""

from __future__ import annotations

import dataclasses

from nlrl_jax.config import part
from nlrl_jax.run import app
from nlrl_jax.run import flags as config_flags
from nlrl_jax.run.serving.config import LOOPBACK, ServerConfig, bound
from nlrl_jax.run.serving.models import ServedConfig, load_served


@dataclasses.dataclass(frozen=True)
class ServeConfig:
    """What is served, and where."""

    served: ServedConfig = part(ServedConfig())
    server: ServerConfig = part(ServerConfig())


def main(argv: list[str]) -> None:
    del argv
    from nlrl_jax.run.serving.server import ModelServer  # here, where a package that is missing is one sentence

    config = app.parse(ServeConfig)
    with bound(config.server) as listener:
        served = load_served(config.served)
        for note in served.notes:
            print(note)
        host, port = config.server.host or LOOPBACK, listener.getsockname()[1]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
        print(f"serving {served.name} at {address}; Ctrl-C ends it", flush=True)
        ModelServer(served.name, served.model, served.prompts, config.server).run(listener)
    print("the server has ended", flush=True)


def define_flags() -> None:
    config_flags.define(ServeConfig)


if __name__ == "__main__":
    define_flags()
    app.run(main)
