#!/usr/bin/env bash
# JAX 0.10.2 (jaxlib 0.10.2): jax.lax.scan, map and cond called outside jax.jit, as in a function of discounted returns.
#
# One would guess: the loop's body is traced in each call, and the program that comes of it is found again, as the shapes
# and the jaxpr are those of the call before.
# What happens: a program is kept by the identity of its body. A body that is defined inside the calling function, with or
# without values closed over, is a new one in each call, so XLA compiles in each call, for as long as the process runs.
# A body defined at module level compiles once; so does the calling function under jax.jit.
# Output seen, backend compilations in four calls each:
#   inner: [1, 1, 1, 1], no closure: [1, 1, 1, 1], map: [1, 1, 1, 1], module level: [1, 0, 0, 0], jitted: [1, 0, 0, 0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2
cat > "$folder/look.py" <<'PY'
import jax
import jax.numpy as jnp

compilations = []


def listen(name, seconds, **_):
    if name == "/jax/core/compile/backend_compile_duration":
        compilations.append(seconds)


jax.monitoring.register_event_duration_secs_listener(listen)


def returns(rewards, discount):
    def step(to_go, reward):
        return reward + discount * to_go, to_go

    return jax.lax.scan(step, 0.0, rewards, reverse=True)[0]


def sums(rewards):
    return jax.lax.scan(lambda total, reward: (total + reward, total), 0.0, rewards)[0]


def halves(rewards):
    return jax.lax.map(lambda reward: reward / 2, rewards)


def at_module_level(total, reward):
    return total + reward, total


def same_sums(rewards):
    return jax.lax.scan(at_module_level, 0.0, rewards)[0]


def count(f, *args):
    counts = []
    for _ in range(4):
        before = len(compilations)
        jax.block_until_ready(f(*args))
        counts.append(len(compilations) - before)
    return counts


rewards = jnp.arange(5.0)
got = {
    "inner": count(returns, rewards, 0.9),
    "no closure": count(sums, rewards),
    "map": count(halves, rewards),
    "module level": count(same_sums, rewards),
    "jitted": count(jax.jit(returns, static_argnums=1), rewards, 0.9),
}
print(got)
each, once = [1, 1, 1, 1], [1, 0, 0, 0]
raise SystemExit(got != dict.fromkeys(("inner", "no closure", "map"), each) | dict.fromkeys(("module level", "jitted"), once))
PY
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/look.py"
