"""Random play of Hopper, Walker2d and Ant, control steps a second: our two physics beside Gymnasium's vector env.

    PYTHONPATH=. python benchmarks/locomotion.py [--seconds 2] [--repeats 3] [--games hopper ant] [--batches 1 16 128]
        [--physics c mjx] [--version v4] [--peer-batch 16] [--dtype float32]

Ours is one jitted `lax.scan` over auto-resetting `step`s of n environments under `vmap`, with random actions drawn
inside; observations and rewards are summed so that nothing is optimised away. It runs on whatever device JAX finds:
on an accelerator the defaults are MJX at batches 1024 to 8192, on CPUs C at 1 to 256 and MJX at 1 and 64.
Gymnasium's `SyncVectorEnv` steps one environment after the other, `AsyncVectorEnv` one process an environment; their
actions are drawn in one call beforehand. The subjects take turns within each repeat; a cell is the median, and the
ratio is to the faster of Gymnasium's two. Compiling is not counted but printed. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import platform
import statistics
import sys
import time
import types
import warnings
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np

from envs.locomotion import env as locomotion

PEERS = {"hopper": "Hopper", "walker2d": "Walker2d", "ant": "Ant"}
CHUNK = 16  # steps in one jitted call


class Ours:
    """A batch of our environments that plays on from where it is."""

    def __init__(self, game: str, game_version: str, physics: str, batch: int):
        env = locomotion.make_env(game, game_version, physics)
        params = env.default_params
        self.name, self.batch = f"nlrl_jax, {physics}", batch

        def step(carry, key):
            state, total = carry
            key_action, key_step = jax.random.split(key)
            actions = jax.random.uniform(key_action, (batch, env.num_actions), minval=-1)
            keys = jax.random.split(key_step, batch)
            obs, state, reward, *_ = jax.vmap(env.step, (0, 0, 0, None))(keys, state, actions, params)
            return (state, total + obs.sum() + reward.sum()), None

        play = jax.jit(lambda carry, key: jax.lax.scan(step, carry, jax.random.split(key, CHUNK))[0])
        reset = jax.jit(jax.vmap(env.reset_env, (0, None)))
        _, state = reset(jax.random.split(jax.random.key(0), batch), params)
        self.carry = (state, jnp.zeros((), env.dtype))
        start = time.perf_counter()
        self.compiled = play.lower(self.carry, jax.random.key(0)).compile()
        self.compile_seconds = time.perf_counter() - start
        self.key = jax.random.key(1)
        self.play()

    def play(self) -> int:
        """Plays a little; how many control steps that was."""
        self.key, key = jax.random.split(self.key)
        self.carry = jax.block_until_ready(self.compiled(self.carry, key))
        return CHUNK * self.batch

    def close(self):
        pass


def make_peer(name: str):
    """One of Gymnasium's environments; also called in processes of its own."""
    if "imageio" not in sys.modules and importlib.util.find_spec("imageio") is None:
        sys.modules["imageio"] = types.ModuleType("imageio")  # only the viewer uses it
    import gymnasium

    warnings.simplefilter("ignore")
    return gymnasium.make(name)


class Theirs:
    """Gymnasium's vector environment."""

    def __init__(self, game: str, game_version: str, kind: str, batch: int):
        import gymnasium

        make = functools.partial(make_peer, f"{PEERS[game]}-{game_version}")
        if kind == "sync":
            self.env = gymnasium.vector.SyncVectorEnv([make] * batch)
        else:  # spawn: forking a process in which JAX runs may hang
            self.env = gymnasium.vector.AsyncVectorEnv([make] * batch, context="spawn")
        self.name, self.batch, self.compile_seconds = f"gymnasium, {kind}", batch, 0.0
        self.actions = np.random.default_rng(0).uniform(-1, 1, (CHUNK, *self.env.action_space.shape))
        self.env.reset(seed=0)

    def play(self) -> int:
        """Plays a little; how many control steps that was."""
        for action in self.actions.astype(np.float32):
            self.env.step(action)
        return CHUNK * self.batch

    def close(self):
        self.env.close()


def rate(subject, seconds: float) -> float:
    """Control steps a second, over at least `seconds`."""
    start, steps = time.perf_counter(), 0
    while (taken := time.perf_counter() - start) < seconds:
        steps += subject.play()
    return steps / taken


def subjects(game: str, arguments):
    """Makes the subjects of one game; Gymnasium's come first."""
    for kind in ("sync", "async"):
        yield Theirs(game, arguments.version, kind, arguments.peer_batch)
    for physics in arguments.physics:
        for batch in arguments.batches or default_batches(physics):
            yield Ours(game, arguments.version, physics, batch)


def on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def default_batches(physics: str) -> tuple[int, ...]:
    if not on_cpu():
        return (1024, 2048, 4096, 8192)
    return (1, 16, 256) if physics == "c" else (1, 64)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--games", nargs="+", choices=tuple(PEERS), default=list(PEERS))
    parser.add_argument("--batches", nargs="+", type=int)
    parser.add_argument("--physics", nargs="+", choices=("c", "mjx"), default=["c", "mjx"] if on_cpu() else ["mjx"])
    parser.add_argument("--version", choices=locomotion.VERSIONS, default="v4")
    parser.add_argument("--peer-batch", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", arguments.dtype == "float64")

    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "mujoco", "mujoco-mjx", "gymnasium"))
    cores = len(os.sched_getaffinity(0))
    print(f"{jax.devices()[0].device_kind}, {cores} cores of {platform.machine()}, {arguments.dtype}; {versions}\n")
    print("| game | subject | batch | steps/s | of Gymnasium's best | compiling, s |\n|---|---|---|---|---|---|")
    for game in arguments.games:
        field = list(subjects(game, arguments))
        rates = [[rate(subject, arguments.seconds) for subject in field] for _ in range(arguments.repeats)]
        medians = [statistics.median(column) for column in zip(*rates)]
        best = max(median for subject, median in zip(field, medians) if isinstance(subject, Theirs))
        for subject, median in zip(field, medians):
            cells = (f"{game}-{arguments.version}", subject.name, f"{subject.batch}", f"{median:,.0f}")
            cells += (f"{median / best:.2f}", f"{subject.compile_seconds:.0f}")
            print(f"| {' | '.join(cells)} |", flush=True)
            subject.close()


if __name__ == "__main__":
    main()
