#!/usr/bin/env bash
# OpenEnv 0.10.0: what happens to reset(seed=7) where the environment's own `reset` has no argument `seed`.
#
# One would guess: the server answers with an error, as it does for an action with an unknown field (its messages and
# actions forbid extra fields), or a seed that it accepts makes two episodes the same.
# What happens: the server keeps those arguments that the environment's `reset` names, and drops the others without a
# word. Two sessions that ask for one seed get two different episodes. A trainer that compares the episodes of a group
# (GRPO) then compares answers to different tasks, and nothing says so.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --no-deps openenv==0.10.0
"$folder/venv/bin/pip" install -q fastapi uvicorn websockets requests pydantic "fastmcp>=3,<4" huggingface_hub openai httpx pyyaml rich typer jsonschema
cat > "$folder/server.py" <<'PY'
import random
import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Guess(Action):
    guess: int


class Hint(Observation):
    hint: str


class Numbers(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    state = State()

    def reset(self):
        self.number = random.randint(1, 10**9)
        return Hint(hint=f"the number is {self.number}")

    def step(self, action):
        return Hint(hint="", done=True, reward=float(action.guess == self.number))


app = create_fastapi_app(Numbers, Guess, Hint, max_concurrent_envs=4)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
PY
cat > "$folder/look.py" <<'PY'
import socket
import subprocess
import sys
import time

from openenv.core.generic_client import GenericEnvClient

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen([sys.executable, sys.argv[1], str(port)])


def first_observation():
    with GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync() as env:
        return env.reset(seed=7).observation["hint"]


try:
    for _ in range(100):
        try:
            one = first_observation()
            break
        except ConnectionError:
            time.sleep(0.3)
    other = first_observation()
    with GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync() as env:
        env.reset()
        try:
            env.step({"guess": 1, "seed": 7})
            refused = ""
        except RuntimeError as error:
            refused = str(error)
finally:
    server.kill()
print("reset(seed=7):                        ", one)
print("reset(seed=7) in another session:     ", other)
print("step with a field that nobody declared:", refused)
raise SystemExit(not (one != other and refused))
PY
"$folder/venv/bin/python" "$folder/look.py" "$folder/server.py"
