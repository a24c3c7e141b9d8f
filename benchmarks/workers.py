"""Turns per second of an environment that sleeps at each step: in one process, in two, and in workers.

    python -m benchmarks.workers                            # 64 episodes of 4 turns, 50 ms a step
    python -m benchmarks.workers --ways 1 w8 --ray_python /tmp/ray/bin/python

Ways: a number of processes of one run; w8: eight worker processes beside one; ray:8: as many actors. All play
the same episodes with a built-in model, which writes two tokens a turn, and each is timed on its second round.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time

from nlrl_jax.types import Written

EPISODES, GROUP, TURNS = 64, 4, 4
GAME = "benchmarks.workers:Sleeper"


class Sleeper:
    """Choose a door."""

    max_steps = TURNS

    def __init__(self, seconds: float = 0.05):
        self.seconds = seconds

    def reset(self, seed: int):
        self.seed, self.steps = seed, 0
        return f"Hall {seed}.", {}

    def step(self, action: str):
        time.sleep(self.seconds)
        self.steps += 1
        return f"Hall {self.seed + self.steps}.", float(len(action) % 3), False, False, {}


class SameWords:
    """A model that computes nothing: it writes the same two tokens in every turn."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def write(self, prompts, sampling, role, seed, stop):
        return [Written((40, 41), (-1.0, -1.0), True) for _ in prompts]


def measure(way: str, address: str, number: int, process: int, seconds: float, model: str) -> None:
    """Plays two rounds and prints turns per second, and a hash of what was played, from the first process."""
    import zlib

    from nlrl_jax import envs
    from nlrl_jax.backends.local import LocalModel
    from nlrl_jax.lm.config import LoraConfig
    from nlrl_jax.lm.transformer import Transformer
    from nlrl_jax.rollouts.transcripts import play
    from nlrl_jax.run import players, processes
    from nlrl_jax.run.host_games.prompts import PromptConfig
    from nlrl_jax.run.host_games.shares import shared
    from nlrl_jax.run.ms_grpo.config import TurnsConfig
    from nlrl_jax.run.ms_grpo.token_players import player_maker
    from nlrl_jax.types import Sampling

    if number > 1:
        processes.start(address, number, process, 120.0)
    mesh = players.parse_mesh("2,1,1")
    loaded = players.load("nano_babyai", "", LoraConfig(rank=2), mesh)
    env_workers = way.removeprefix("w") if not way.isdecimal() else ""
    game = shared(envs.make_host(f"{GAME}?seconds={seconds}", env_workers=env_workers))
    if model == "none":
        writer = SameWords(loaded.tokenizer)
    else:
        writer = LocalModel(Transformer(loaded.config, mesh=mesh), {"params": loaded.params}, loaded.tokenizer)
    prompts, room = PromptConfig(prompt="compact"), loaded.config.max_positions
    make_player = player_maker(game, TurnsConfig(turns="lines"), prompts, "nano_babyai", loaded.tokenizer, room)
    tasks = [("", seed) for seed in range(EPISODES // GROUP) for _ in range(GROUP)]
    for _ in range(2):
        player, clock = make_player(writer, Sampling(2, temperature=1.0)), time.perf_counter()
        played = play(player, game, tasks, seed=0)
        passed = time.perf_counter() - clock
    turns, digest = sum(len(episode.turns) for episode in played), zlib.crc32(repr(played).encode())
    print(f"{way}\t{turns / passed:.1f}\t{passed:.2f}\t{digest:08x}", flush=True)


def run(way: str, options: argparse.Namespace) -> list[str]:
    """What `measure` prints, of processes with two devices together."""
    number = int(way) if way.isdecimal() else 1
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    python = options.ray_python if way.startswith("ray") else sys.executable
    variables = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(2 // number)}
    with tempfile.TemporaryFile("w+") as output:
        children = [
            subprocess.Popen(
                [python, "-m", "benchmarks.workers", "--child", way, address, str(number), str(process)]
                + ["--seconds", str(options.seconds), "--model", options.model],
                stdout=output, env={**os.environ, **variables},
            )
            for process in range(number)
        ]  # fmt: skip
        if any([child.wait() for child in children]):
            raise SystemExit(f"{way} has failed")
        output.seek(0)
        return output.read().split("\t")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", default=["1", "2", "w2", "w4", "w8"])
    parser.add_argument("--seconds", type=float, default=0.05, help="that a step sleeps")
    parser.add_argument("--model", default="nano_babyai", help="or none: environments and what is exchanged alone")
    parser.add_argument("--ray_python", default=sys.executable, help="a Python that has ray, for ray:N")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        way, address, number, process = options.child
        measure(way, address, int(number), int(process), options.seconds, options.model)
        return
    first = None
    print("way     turns/s  times the first   s    the same episodes")
    for way in options.ways:
        _, speed, passed, digest = run(way, options)
        first = first or (float(speed), digest)
        print(f"{way:8}{speed:>7}{float(speed) / first[0]:17.2f}{passed:>6}    {digest == first[1]}", flush=True)


if __name__ == "__main__":
    main()
