"""DQN on Snake: the pure jitted loop against the same pieces called from Python, environment steps a second.

    python -m benchmarks.dqn

Both play `num_envs` games and take one gradient step of 128 transitions after each move of all of them. The host
loop calls one jitted program a step, as a training loop in Python does; the pure loop is one program for all steps.
"play only" takes the gradient of one transition instead of 128, which shows what the games and acting cost.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import statistics
import time
from importlib.metadata import version

import jax

import envs
from nlrl_jax.algorithms.dqn import DQNConfig, init_state, make_train


def measure(run, steps: int, repeats: int) -> float:
    """Median environment steps a second; the first call compiles."""
    run()
    speeds = []
    for _ in range(repeats):
        clock = time.perf_counter()
        jax.block_until_ready(run())
        speeds.append(steps / (time.perf_counter() - clock))
    return statistics.median(speeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_envs", type=int, nargs="+", default=[1, 20, 100])
    parser.add_argument("--moves", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    game = envs.make("snake")
    print(
        f"jax {version('jax')}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"{jax.devices()[0].device_kind}; medians of {args.repeats}"
    )
    print("| games side by side | how | environment steps/s | ratio |\n| --- | --- | --- | --- |")
    for n in args.num_envs:
        config = DQNConfig(num_envs=n, buffer_size=10_000 // n * n, learning_starts=n)
        idle = dataclasses.replace(config, learning_starts=config.buffer_size)
        state = init_state(game.env, game.params, config, jax.random.key(0))
        train = jax.jit(make_train(game.env, game.params, config), static_argnums=1)
        play = jax.jit(make_train(game.env, game.params, dataclasses.replace(idle, batch_size=1)), static_argnums=1)

        def by_hand(state=state, train=train):
            for _ in range(args.moves):
                state, metrics = train(state, 1)
                float(metrics["loss"])
            return state

        ways = {
            "host loop": by_hand,
            "one program": lambda state=state, train=train: train(state, args.moves),
            "one program, play only": lambda state=state, play=play: play(state, args.moves),
        }
        speeds = {name: measure(way, args.moves * n, args.repeats) for name, way in ways.items()}
        for name, speed in speeds.items():
            print(f"| {n} | {name} | {speed:.0f} | {speed / speeds['host loop']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
