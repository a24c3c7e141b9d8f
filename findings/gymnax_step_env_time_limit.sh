#!/usr/bin/env bash
# gymnax 1.0.1: an environment's time limit ends episodes in `step`, and nowhere in `step_env`.
#
# One would guess that `step_env` is `step` without the automatic reset, and that the end that it returns is the
# episode's: so it was in gymnax 0.x, whose environments put the time limit into `is_terminal` and with it into `done`.
# What happens: `step_env` returns five values, and its `terminated` never holds because of `max_steps_in_episode`; a
# rollout over it plays on for ever, and earns rewards that no episode has. Only `step` (six values, `truncated` among
# them) or a call of `env.is_truncated(state, params)` sees the limit. And `EnvParams`, whose limit a subclass inherits
# where it names none, has a limit of one step, not of none.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q gymnax==1.0.1 jax==0.10.2 six
JAX_PLATFORMS=cpu "$here/venv/bin/python" - <<'PYTHON'
import gymnax
import jax
from gymnax.environments.environment import EnvParams

env, params = gymnax.make("MountainCar-v0")
key, idle = jax.random.key(0), 1
step_env, step = jax.jit(env.step_env), jax.jit(env.step)

_, state = env.reset_env(key, params)
ended = False
for _ in range(300):
    _, state, _, terminated, _ = step_env(key, state, idle, params)
    ended |= bool(terminated)
time, past = int(state.time), bool(env.is_truncated(state, params))
print(f"limit {params.max_steps_in_episode}: step_env after 300 idle steps: time {time}, ended {ended}, is_truncated {past}")

_, state = env.reset(key, params)
for first in range(1, 301):
    _, state, _, _, truncated, _ = step(key, state, idle, params)
    if truncated:
        break
print(f"step: truncated after {first} steps; a parameters' default limit: {EnvParams().max_steps_in_episode}")
assert params.max_steps_in_episode == 200 and (time, ended, past) == (300, False, True)
assert first == 200 and EnvParams().max_steps_in_episode == 1
PYTHON
