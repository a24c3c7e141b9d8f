"""Random play, steps a second: our FrozenLake and Snake beside gymnax's FrozenLake-misc, our Pong beside its Pong.

    PYTHONPATH=. python benchmarks/games.py [--games boards pong] [--seconds 0.5] [--repeats 5] [--batches 1 64 1024]

Every figure is one jitted `lax.scan` over auto-resetting `step`s of n environments under `vmap`, with
uniformly random actions drawn inside; rewards are summed so that nothing is optimised away. With
"obs" the observations are summed too (ours are float planes, gymnax's is one integer); without it the
compiler may leave them out, which is the case of the text games, as their text reads the state.
gymnax's map is one fixed 4x4 board; ours draws a new solvable one in each episode. gymnax's Pong is another game
(30 x 40 cells, seen as planes); ours is ULTRA's, seen as six numbers or as frames.
The subjects take turns within each repeat; a cell is the median, the ratio that of the medians.
Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from importlib.metadata import version

import gymnax
import jax
import jax.numpy as jnp

import envs
from envs.pong import env as pong


def player(env, params, batch: int, steps: int, with_obs: bool):
    """A jitted key -> checksum that plays `steps` random steps in `batch` environments."""

    def play(key):
        key, first = jax.random.split(key)
        _, state = jax.vmap(env.reset, (0, None))(jax.random.split(first, batch), params)

        def step(carry, key):
            state, total = carry
            key_action, key_step = jax.random.split(key)
            actions = jax.random.randint(key_action, (batch,), 0, env.num_actions)
            keys = jax.random.split(key_step, batch)
            obs, state, reward, *_ = jax.vmap(env.step, (0, 0, 0, None))(keys, state, actions, params)
            total += reward.sum()
            if with_obs:
                total += obs.sum()
            return (state, total), None

        (state, total), _ = jax.lax.scan(step, (state, jnp.float32(0)), jax.random.split(key, steps))
        return total, state

    return jax.jit(play)


def seconds(run, key) -> float:
    """Wall-clock time of one finished call."""
    start = time.perf_counter()
    jax.block_until_ready(run(key))
    return time.perf_counter() - start


def subjects(games: str):
    """(name, environment, params, with_obs) of every row; the first one is the yardstick."""
    if games == "pong":
        rows = [("gymnax Pong-misc", *gymnax.make("Pong-misc"), True)]
        for name, points, pixels in (("one point", 1, False), ("to 21", 21, False), ("one point, frames", 1, True)):
            game = pong.control_game(points, pixels)
            rows.append((f"pong, {name}", game.env, game.params, True))
        return rows
    peer, peer_params = gymnax.make("FrozenLake-misc")
    rows = [("gymnax FrozenLake-misc (slippery, fixed map)", peer, peer_params, True)]
    for name in ("frozen_lake_slippery", "frozen_lake", "snake"):
        game = envs.make(name)
        rows.append((name, game.env, game.params, False))
        rows.append((f"{name}, obs", game.env, game.params, True))
    return rows


def measure(games: str, batch: int, target: float, repeats: int) -> list[float]:
    """Median steps a second of every subject at this batch size; each run lasts about `target` seconds."""
    runs = []
    for _, env, params, with_obs in subjects(games):
        probe = max(50, 20_000 // batch)
        run = player(env, params, batch, probe, with_obs)
        seconds(run, jax.random.key(0))
        steps = max(probe, int(probe * target / seconds(run, jax.random.key(1))))
        run = player(env, params, batch, steps, with_obs)
        seconds(run, jax.random.key(0))
        runs.append((run, steps))
    rates = [[] for _ in runs]
    for repeat in range(repeats):
        for rate, (run, steps) in zip(rates, runs, strict=True):
            rate.append(batch * steps / seconds(run, jax.random.key(repeat)))
    return [statistics.median(rate) for rate in rates]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", choices=("boards", "pong"), default=["boards", "pong"])
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64, 1024, 4096])
    options = parser.parse_args()
    versions = f"jax {jax.__version__}, gymnax {version('gymnax')}, python {platform.python_version()}"
    print(f"{versions}, {os.cpu_count()} CPU cores, backend {jax.default_backend()}, load {os.getloadavg()[0]:.1f}")
    print(f"median of {options.repeats} interleaved repeats; steps/s, in brackets the ratio to gymnax\n")
    for games in options.games:
        columns = [measure(games, batch, options.seconds, options.repeats) for batch in options.batches]
        print("| random play | " + " | ".join(f"n={batch}" for batch in options.batches) + " |")
        print("|---" * (1 + len(columns)) + "|")
        for i, (name, *_) in enumerate(subjects(games)):
            cells = (f"{column[i] / 1e6:.3f}M ({column[i] / column[0]:.2f})" for column in columns)
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
        print()


if __name__ == "__main__":
    main()
