"""BabyAI-Text, random play: steps a second beside minigrid and, where it is installed, XLand-MiniGrid's MiniGrid port.

    PYTHONPATH=. python benchmarks/babyai.py [--mission "go to"] [--seconds 1] [--repeats 5] [--batches 1 64 1024]
    PYTHONPATH=. python benchmarks/babyai.py --xminigrid_python /path/to/python    # of an environment with xminigrid

Every row of ours is one jitted `lax.scan` over n games under `vmap` with actions drawn inside, and every step is added
up, so that nothing is optimised away:
- "steps": what the agent sees (uint8 [7, 7, 3]) after each of the steps, no resets;
- "games": games of 30 steps from fresh layouts, the drawing of layouts within the time;
- "paper prompt as tokens", "compact ...": each step also writes the text as the built-in model's token ids.
minigrid plays its own GoToLocal with 8 distractors, one game at a time, with a view after every step. A cell gives the
best and the median of the interleaved repeats, the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import time
from importlib.metadata import version

import jax
import jax.numpy as jnp

import envs
from envs.babyai import levels, rules
from nlrl_jax.text.compile import compile_template
from nlrl_jax.weights.load import load_model

MAX_STEPS = 30

XMINIGRID = """
import sys, time, jax, xminigrid
batch, steps = int(sys.argv[1]), int(sys.argv[2])
env, params = xminigrid.make("MiniGrid-EmptyRandom-8x8")
def play(key):
    timestep = jax.vmap(env.reset, (None, 0))(params, jax.random.split(key, batch))
    def step(timestep, key):
        actions = jax.random.randint(key, (batch,), 0, env.num_actions(params))
        timestep = jax.vmap(env.step, (None, 0, 0))(params, timestep, actions)
        return timestep, timestep.observation.sum()
    return jax.lax.scan(step, timestep, jax.random.split(key, steps))[1].sum()
play = jax.jit(play)
play(jax.random.key(0)).block_until_ready()
start = time.perf_counter()
play(jax.random.key(1)).block_until_ready()
print(batch * steps / (time.perf_counter() - start))
"""


def act(states, key):
    """One random action in each game, and a checksum of what is seen."""
    batch = states.time.shape[0]
    states = jax.vmap(rules.step)(states, jax.random.randint(key, (batch,), 0, len(rules.ACTIONS)))
    return states, jax.vmap(rules.view)(states).sum(dtype=jnp.int32)


def fresh(key, batch: int, mission: str):
    return jax.vmap(lambda key: levels.draw(key, mission))(jax.random.split(key, batch))


def steps_only(batch: int, rounds: int, mission: str):
    """A jitted key -> checksum of `rounds` * 30 steps in each of `batch` games."""
    start = jax.jit(lambda: fresh(jax.random.key(0), batch, mission))()
    return jax.jit(lambda key: jax.lax.scan(act, start, jax.random.split(key, rounds * MAX_STEPS))[1].sum())


def games(batch: int, rounds: int, mission: str):
    """The same with fresh layouts every 30 steps."""

    def play(_, key):
        keys = jax.random.split(key, MAX_STEPS + 1)
        return None, jax.lax.scan(act, fresh(keys[0], batch, mission), keys[1:])[1].sum()

    return jax.jit(lambda key: jax.lax.scan(play, None, jax.random.split(key, rounds))[1].sum())


def with_text(prompt: str):
    game = envs.make("babyai", prompt)
    compiled = compile_template(game.observation, load_model("nano")[2])

    def make(batch: int, rounds: int, mission: str):
        def step(states, key):
            states, total = act(states, key)
            tokens, lengths = jax.vmap(lambda state: compiled(game.fields(state)))(states)
            return states, total + tokens.sum() + lengths.sum()

        start = jax.jit(lambda: fresh(jax.random.key(0), batch, mission))()
        return jax.jit(lambda key: jax.lax.scan(step, start, jax.random.split(key, rounds * MAX_STEPS))[1].sum())

    return make


def minigrid_rate(seconds: float) -> float:
    import gymnasium
    import minigrid  # noqa: F401, registers its environments

    env = gymnasium.make("BabyAI-GoToLocal-v0").unwrapped
    env.reset(seed=0)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for action in env.np_random.integers(0, len(rules.ACTIONS), 100):
            *_, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        count += 100
    return count / (time.perf_counter() - start)


ROWS = {
    "steps": steps_only,
    "games of 30 steps": games,
    "paper prompt as tokens": with_text("paper"),
    "compact prompt as tokens": with_text("compact"),
}


def rate(make, batch: int, mission: str, seconds: float):
    """A function of a seed that plays for about so many seconds -> steps a second."""
    run = make(batch, 1, mission)
    clock = lambda run, seed: (
        -time.perf_counter() + (jax.block_until_ready(run(jax.random.key(seed))), time.perf_counter())[1]
    )
    clock(run, 0)
    rounds = max(1, int(seconds / clock(run, 1)))
    run = make(batch, rounds, mission)
    clock(run, 0)
    return lambda seed: batch * rounds * MAX_STEPS / clock(run, seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mission", default="go to")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64, 1024])
    parser.add_argument("--xminigrid_python", default="")
    options = parser.parse_args()
    versions = f"jax {jax.__version__}, minigrid {version('minigrid')}, python {platform.python_version()}"
    print(f"{versions}, {os.cpu_count()} CPU cores, backend {jax.default_backend()}, load {os.getloadavg()[0]:.1f}")
    print("thousand steps/s: best / median (ratio of the median to minigrid's)\n")
    runs = {
        (name, batch): rate(make, batch, options.mission, options.seconds)
        for batch in options.batches
        for name, make in ROWS.items()
    }
    rates = {subject: [] for subject in runs} | {"minigrid": []}
    for repeat in range(options.repeats):
        rates["minigrid"].append(minigrid_rate(options.seconds))
        for subject, run in runs.items():
            rates[subject].append(run(repeat))
        if options.xminigrid_python:
            for batch in options.batches:
                command = [options.xminigrid_python, "-c", XMINIGRID, str(batch), str(max(300, 300_000 // batch))]
                printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                rates.setdefault(("XLand-MiniGrid, empty 8x8", batch), []).append(float(printed.split()[-1]))
    yardstick = statistics.median(rates["minigrid"])

    def cell(values):
        median = statistics.median(values)
        return f"{max(values) / 1e3:,.1f} / {median / 1e3:,.1f} ({median / yardstick:,.0f})"

    print("| random play | " + " | ".join(f"n={batch}" for batch in options.batches) + " |")
    print("|---" * (1 + len(options.batches)) + "|")
    print(f"| minigrid (one game) | {cell(rates['minigrid'])} |" + " |" * (len(options.batches) - 1))
    for name in dict.fromkeys(subject[0] for subject in rates if subject != "minigrid"):
        print(f"| {name} | " + " | ".join(cell(rates[name, batch]) for batch in options.batches) + " |")


if __name__ == "__main__":
    main()
