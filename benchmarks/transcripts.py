"""MS-GRPO in growing transcripts beside TRL's GRPOTrainer: turns per CPU second on BabyAI-Text "go to".

    python -m benchmarks.transcripts --trl_python PYTHON [--iterations 3] [--groups 4] [--group_size 8] [--turns 8]

Both train nano_babyai with a LoRA adapter of rank 16 on tasks drawn alike, with equally many episodes, the same limit
of turns, at most 8 tokens a line, temperature 1, no KL penalty and one gradient step. Our process plays TRL's game too
(`peers/trl_grpo.py`); the game's CPU time is left out of both. Programs are compiled in a first pass of the same
iterations ("before": its CPU seconds; of TRL those of one iteration that is left out). Each plays as its own samples
go, so turns differ a little. CPU seconds, as a busy machine stretches the others; torch has one thread, which costs it
the fewest.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import envs
from benchmarks.timing import ROOT, machine, parser_of, print_head, print_row
from launch.train_ms_grpo import PRESETS, TrainConfig
from nlrl_jax.config import make
from nlrl_jax.roles.dialogues import History, read_action
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


def ours(training: TranscriptTraining, timed: Timed, iterations: int) -> list[tuple[float, float, int]]:
    """(CPU seconds, of these in the rollout, turns) of each iteration."""
    state, found, inside = jax.tree.map(jnp.copy, training.state), [], []
    play = type(training).play.__get__(training)

    def counted(*args):
        start, game = time.process_time(), timed.seconds
        played = play(*args)
        inside.append((time.process_time() - start - timed.seconds + game, sum(len(one.turns) for one in played)))
        return played

    training.play = counted
    for i in range(iterations):
        start, game = time.process_time(), timed.seconds
        state, _ = training.update(state, jax.random.fold_in(jax.random.key(0), i))
        jax.block_until_ready(state)
        found.append((time.process_time() - start - timed.seconds + game, *inside[-1]))
    return found


class Server:
    """Plays the peer's game: its texts as tokens, in our prompts."""

    def __init__(self, training: TranscriptTraining, turns: int):
        self.training, self.turns = training, turns
        self.player = training.player({}, greedy=False)

    def reset(self, iteration: int) -> list[list[int]]:
        learning = self.training.config.learning
        tasks = self.training.tasks.draw(learning.num_groups, np.random.default_rng(iteration))
        starts = self.training.game.reset([task for task in tasks for _ in range(learning.group_size)])
        self.states = [start.state for start in starts]
        return [list(self.player.head(History(start.goal, start.observation))) for start in starts]

    def step(self, lines: list[tuple[int, list[int]]]) -> list[tuple[list[int], float, bool]]:
        written = [Written(tuple(tokens), (), True) for _, tokens in lines]
        texts = [self.player.line(one) for one in written]
        actions = [read_action(text, self.training.game.actions)[0] or text or "nothing" for text in texts]
        outcomes = self.training.game.step([self.states[i] for i, _ in lines], actions)
        answers = []
        for (i, tokens), one, outcome in zip(lines, written, outcomes, strict=True):
            self.states[i] = outcome.state
            after = self.player.after(one, f"Observation: {outcome.observation}\nAction:")[len(tokens) :]
            answers.append((list(after), float(outcome.reward), bool(outcome.done)))
        return answers


def trl(python: str, training: TranscriptTraining, options: dict[str, Any]) -> list[tuple[float, float, int]]:
    """What `ours` returns, of the peer."""
    server, ends = Server(training, options["max_turns"]), training.writer._ends(("\n",))
    with tempfile.TemporaryDirectory() as output:
        more = {"ends": np.flatnonzero(ends).tolist(), "room": training.room, "output": output}
        command = [python, "benchmarks/peers/trl_grpo.py", str(BUILT_IN["nano_babyai"]), json.dumps(options | more)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
            for line in process.stdout:
                if not line.startswith('{"'):
                    continue
                request = json.loads(line)
                if "result" in request:
                    found = request["result"]
                    rows = zip(found["whole"], found["rollout"], found["turns"], strict=True)
                    return [(whole[0], rollout[0], turns) for whole, rollout, turns in rows]
                (name, value) = request.popitem()
                process.stdin.write(json.dumps(getattr(server, name)(value)) + "\n")
                process.stdin.flush()
    raise RuntimeError("the peer ended without a result")


def main():
    parser = parser_of(__doc__, iterations=3, groups=4, group_size=8, turns=8, trl_python="")
    options = parser.parse_args()
    learning = {"num_groups": options.groups, "group_size": options.group_size, "group_sample": options.group_size}
    config = make(
        TrainConfig, **PRESETS["babyai"] | learning | {"missions": "go to", "max_turns": options.turns, "seed": 3}
    )
    timed = Timed(envs.make_host("babyai"))
    training = TranscriptTraining(config, timed.game)
    print(machine())
    print_head("trainer", "turns", "CPU s", "of these rollouts", "turns per CPU s", "before: CPU s")
    subjects = {}
    if options.trl_python:
        shared = {
            "groups": options.groups, "group_size": options.group_size, "max_turns": options.turns,
            "max_tokens": config.sampling.max_tokens, "iterations": options.iterations + 1,
            "learning_rate": config.learning.learning_rate,
        }  # fmt: skip
        first, *found = trl(options.trl_python, training, shared)
        subjects["TRL"] = [first], found
    passes = [ours(training, timed, options.iterations) for _ in range(2)]
    subjects["ours"] = passes[0], passes[1]
    for name, (before, found) in subjects.items():
        seconds, rollouts, turns = np.sum(found, axis=0)
        row = f"{seconds:.1f}", f"{rollouts:.1f}", f"{turns / seconds:.1f}", f"{np.sum(before, axis=0)[0]:.1f}"
        print_row(name, int(turns), *row)


if __name__ == "__main__":
    main()
