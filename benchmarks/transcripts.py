"""MS-GRPO in growing transcripts beside TRL's GRPOTrainer: turns per CPU second and per second on BabyAI-Text "go to".

    python -m benchmarks.transcripts --trl_python PYTHON [--iterations 3] [--groups 4] [--group_size 8] [--turns 8]
    python -m benchmarks.transcripts --trl_python PYTHON --model FOLDER --examples 1 --tokens 12 \\
        --lr 2e-5 --trl_rows 2 --threads 2

Both train one model with a LoRA adapter of rank 16 on tasks drawn alike, with equally many episodes, the same limits
of turns and of tokens a line, temperature 1, no KL penalty and one gradient step. FOLDER is one of Hugging Face, such
as `nlrl-jax export` writes; without it nano_babyai. Our process plays TRL's game too (`peers/trl_grpo.py`); the game's
CPU time is left out of both, and the seconds have it. Programs are compiled in a first pass of the same iterations
("before": its CPU seconds; of TRL those of one iteration that is left out). Each plays as its own samples go, so turns
differ a little. --threads are torch's: one costs it the fewest CPU seconds. --trl_rows: rows of its update at a time,
0 for all.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import tempfile
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import ROOT, machine, parser_of, print_head, print_row
from nlrl_jax import envs
from nlrl_jax.config import make
from nlrl_jax.launch.train_ms_grpo import PRESETS, TrainConfig
from nlrl_jax.roles.actions import read_action
from nlrl_jax.roles.dialogues import History
from nlrl_jax.run.ms_grpo.transcripts import TranscriptTraining
from nlrl_jax.types import HostGame, Written
from nlrl_jax.weights.load import BUILT_IN


class Timed:
    """A game whose CPU seconds are counted."""

    def __init__(self, game: HostGame):
        self.seconds = 0.0
        self.game = dataclasses.replace(game, reset=self._timed(game.reset), step=self._timed(game.step))

    def _timed(self, call):
        def run(*args):
            start = time.process_time()
            try:
                return call(*args)
            finally:
                self.seconds += time.process_time() - start

        return run


class Cost(NamedTuple):
    """Of an iteration; `rollout` is the share of `cpu` in which episodes were played."""

    cpu: float
    rollout: float
    wall: float
    turns: int


def ours(training: TranscriptTraining, timed: Timed, iterations: int) -> list[Cost]:
    """What each iteration costs, from the same state."""
    state, costs, inside = jax.tree.map(jnp.copy, training.state), [], []
    play = type(training).play.__get__(training)

    def counted(*args):
        start, game = time.process_time(), timed.seconds
        played = play(*args)
        inside.append(
            (time.process_time() - start - timed.seconds + game, sum(len(episode.turns) for episode in played))
        )
        return played

    training.play = counted
    for i in range(iterations):
        start, game, wall_start = time.process_time(), timed.seconds, time.perf_counter()
        state, _ = training.update(state, jax.random.fold_in(jax.random.key(0), i))
        jax.block_until_ready(state)
        (rollout, turns), wall = inside[-1], time.perf_counter() - wall_start
        costs.append(Cost(time.process_time() - start - timed.seconds + game, rollout, wall, turns))
    return costs


class Server:
    """Plays the peer's game: its texts as tokens, in our prompts."""

    def __init__(self, training: TranscriptTraining):
        self.training = training
        self.player = training.player({}, greedy=False)

    def reset(self, iteration: int) -> list[list[int]]:
        learning = self.training.config.learning
        tasks = self.training.tasks.draw(learning.num_groups, np.random.default_rng(iteration))
        starts = self.training.game.reset([task for task in tasks for _ in range(learning.group_size)])
        self.states = [start.state for start in starts]
        return [list(self.player.head(History(start.goal, start.observation))) for start in starts]

    def step(self, lines: list[tuple[int, list[int]]]) -> list[tuple[list[int], float, bool]]:
        replies = [Written(tuple(tokens), (), True) for _, tokens in lines]
        texts = [self.player.line(reply) for reply in replies]
        actions = [read_action(text, self.training.game.actions)[0] or text or "nothing" for text in texts]
        outcomes = self.training.game.step([self.states[i] for i, _ in lines], actions)
        answers = []
        for (i, tokens), reply, outcome in zip(lines, replies, outcomes, strict=True):
            self.states[i] = outcome.state
            after = self.player.after(reply, f"Observation: {outcome.observation}\nAction:")[len(tokens) :]
            answers.append((list(after), float(outcome.reward), bool(outcome.done)))
        return answers


def trl(python: str, training: TranscriptTraining, options: dict[str, Any]) -> list[Cost]:
    """What `ours` returns, of the peer."""
    server, end_tokens = Server(training), training.writer._end_tokens(("\n",))
    with tempfile.TemporaryDirectory() as output:
        limits = {"ends": np.flatnonzero(end_tokens).tolist(), "room": training.room, "output": output}
        folder = str(BUILT_IN.get(training.config.model, training.config.model))
        command = [python, "benchmarks/peers/trl_grpo.py", folder, json.dumps(options | limits)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
            for line in process.stdout:
                if not line.startswith('{"'):
                    continue
                request = json.loads(line)
                if "result" in request:
                    result = request["result"]
                    rows = zip(result["whole"], result["rollout"], result["turns"], strict=True)
                    return [Cost(whole[0], rollout[0], whole[1], turns) for whole, rollout, turns in rows]
                (name, value) = request.popitem()
                process.stdin.write(json.dumps(getattr(server, name)(value)) + "\n")
                process.stdin.flush()
    raise RuntimeError("the peer ended without a result")


def main():
    sizes = {"iterations": 3, "groups": 4, "group_size": 8, "turns": 8, "tokens": 8}
    setup = {"model": "nano_babyai", "examples": 0, "lr": 1e-3, "trl_python": "", "trl_rows": 0, "threads": 1}
    options = parser_of(__doc__, **sizes, **setup).parse_args()
    size = options.group_size
    learning = {"num_groups": options.groups, "group_size": size, "group_sample": size, "learning_rate": options.lr}
    limits = {"max_turns": options.turns, "max_tokens": options.tokens}
    play = {"model": options.model, "examples": options.examples, "missions": "go to", "dtype": "float32", "seed": 3}
    config = make(TrainConfig, **PRESETS["babyai"] | learning | limits | play)
    timed = Timed(envs.make_host("babyai"))
    training = TranscriptTraining(config, config.transcripts, config.game, timed.game, timed.game)
    print(machine())
    print_head("trainer", "turns", "CPU s", "of these rollouts", "s", "turns per CPU s", "turns per s", "before: CPU s")
    subjects = {}
    if options.trl_python:
        lanes = options.groups * size
        shared = {
            "groups": options.groups, "group_size": size, **limits, "iterations": options.iterations + 1,
            "learning_rate": options.lr, "rows": options.trl_rows or lanes, "threads": options.threads,
        }  # fmt: skip
        first, *costs = trl(options.trl_python, training, shared)
        subjects["TRL"] = [first], costs
    subjects["ours"] = tuple(ours(training, timed, options.iterations) for _ in range(2))
    for name, (before, costs) in subjects.items():
        cost = Cost(*np.sum(costs, axis=0))
        row = f"{cost.cpu:.1f}", f"{cost.rollout:.1f}", f"{cost.wall:.1f}"
        rates = f"{cost.turns / cost.cpu:.2f}", f"{cost.turns / cost.wall:.2f}"
        print_row(name, int(cost.turns), *row, *rates, f"{np.sum(before, axis=0)[0]:.1f}")


if __name__ == "__main__":
    main()
