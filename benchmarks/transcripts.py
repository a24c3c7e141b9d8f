"""MS-GRPO in growing transcripts beside TRL's GRPOTrainer: turns per CPU second and per second.

    python -m benchmarks.transcripts --trl_python PYTHON [--iterations 3] [--groups 4] [--group_size 8] [--turns 8]
    python -m benchmarks.transcripts --trl_python PYTHON --model FOLDER --examples 1 --tokens 12 \\
        --lr 2e-5 --trl_rows 2 --threads 2
    python -m benchmarks.transcripts --trl_python PYTHON --game textarena:GuessTheNumber-v0 --model FOLDER --tokens 48

Both train one model with a LoRA adapter of rank 16 on tasks drawn alike, with equally many episodes, the same limits
of turns and of tokens a reply, temperature 1, no KL penalty and one gradient step. FOLDER is one of Hugging Face, such
as `nlrl-jax export` writes; without it nano_babyai.

Without --game, BabyAI-Text "go to" in lines of one open message, by TRL's `rollout_func`. With one, chats: the game's
replies are messages, by TRL's `environment_factory` (`peers/trl_grpo.py` says how). The prompts of both have the same
tokens, which is checked. TRL asks the model once more when a game is over; that counts as a turn of it.

Our process plays TRL's game too; the game's CPU time is left out of both, and the seconds have it. "first" are the CPU
seconds of the first iterations, as many as measured ones, in which programs are compiled. Ours are then repeated, each
before one of TRL's, whose first is not measured; --apart: after TRL's, where both do not fit into memory. Each plays as
its own samples go, so turns and tokens differ a little. "learned" is the share of our groups with unequal returns; TRL
computes the others, too. --threads are torch's: one costs it the fewest CPU seconds. --trl_rows: rows of its update at
a time, 0 for all.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import ROOT, machine, parser_of, print_head, print_row
from nlrl_jax import envs
from nlrl_jax.config import make
from nlrl_jax.launch.train_ms_grpo import PRESETS, TrainConfig
from nlrl_jax.roles.actions import read_action
from nlrl_jax.roles.dialogues import History
from nlrl_jax.roles.messages import first_message, read_reply
from nlrl_jax.rollouts.conversations import ChatPlayer
from nlrl_jax.run.ms_grpo import transcripts
from nlrl_jax.run.ms_grpo.transcripts import TranscriptTraining
from nlrl_jax.types import HostGame, Written
from nlrl_jax.weights.load import BUILT_IN

OVER = "The game is over."  # as in peers/trl_grpo.py


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
    tokens: int
    row_use: float = np.nan
    learned: float = np.nan


def ours(training: TranscriptTraining, timed: Timed) -> Iterator[Cost]:
    """What each iteration costs, from the same state."""
    # An update takes its state's memory; the weights, which it only hands on, are not copied for the next pass.
    learned = jax.tree.map(jnp.copy, training.state.replace(params=None))
    state, played = learned.replace(params=training.state.params), []
    play = transcripts.play

    def counted(*args):
        start, game = time.process_time(), timed.seconds
        played[:] = play(*args)
        counted.seconds = time.process_time() - start - timed.seconds + game
        return list(played)

    iteration = 0
    while True:
        start, game, wall = time.process_time(), timed.seconds, time.perf_counter()
        with mock.patch.object(transcripts, "play", counted):
            state, metrics = training.update(state, jax.random.fold_in(jax.random.key(0), iteration))
        jax.block_until_ready(state)
        training.state = training.state.replace(params=state.params)
        cpu, wall = time.process_time() - start - timed.seconds + game, time.perf_counter() - wall
        replies = [reply.written.tokens for episode in played for turn in episode.turns for reply in turn.replies]
        turns, tokens = sum(len(episode.turns) for episode in played), sum(map(len, replies))
        measured = metrics["row_use"], 1 - metrics["uninformative_groups"]
        yield Cost(cpu, counted.seconds, wall, turns, tokens, *map(float, measured))
        iteration += 1


class LineServer:
    """Plays the peer's game in lines: its texts as tokens, in our prompts."""

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


class ChatServer:
    """Plays the peer's game in messages, one episode at a time, and checks the peer's prompts."""

    def __init__(self, training: TranscriptTraining):
        self.training, self.game = training, training.game
        self.player: ChatPlayer = training.player({}, greedy=False)
        self.states: dict[int, Any] = {}
        self.ends: dict[int, tuple[int, ...]] = {}  # of each episode's next prompt

    def begin(self, request: tuple[int, str]) -> str:
        lane, task = request
        (start,) = self.game.reset([tuple(json.loads(task))])
        self.states[lane] = start.state
        self.ends[lane] = self.player.head(History(start.goal, start.observation))
        return first_message(start.goal, start.observation)

    def act(self, request: tuple[int, str]) -> tuple[str, float, bool]:
        lane, reply = request
        action, _ = read_reply(reply, self.game)
        (outcome,) = self.game.step([self.states[lane]], [action])
        self.states[lane] = outcome.state
        text = f"{outcome.observation}\n{OVER}" if outcome.done else outcome.observation
        self.ends[lane] = self.player.form.between(text, True)
        return outcome.observation, float(outcome.reward), bool(outcome.done)

    def check(self, prompts: list[list[int]]) -> None:
        ends = set(self.ends.values())
        for prompt in prompts:
            if not any(tuple(prompt[-len(end) :]) == end for end in ends):
                raise RuntimeError(f"TRL's prompt ends otherwise than ours: {self.decoded(prompt)!r}")

    def decoded(self, tokens: list[int]) -> str:
        return self.training.writer.tokenizer.decode(tokens, skip_special_tokens=False)


def trl(python: str, training: TranscriptTraining, options: dict[str, Any], between=lambda: None) -> list[Cost]:
    """What `ours` yields, of the peer. between: called before each iteration but the first."""
    in_chats = training.form.turns.turns == "chat"
    server = (ChatServer if in_chats else LineServer)(training)
    options["room"] = training.room
    learning = training.config.learning
    if in_chats:
        drawn = [
            json.dumps(task)
            for i in range(options["iterations"])
            for task in training.tasks.draw(learning.num_groups, np.random.default_rng(i))
        ]
        options |= {"tasks": drawn, "system": server.player.system}
    else:
        ends = np.flatnonzero(training.writer._end_tokens(("\n",))).tolist()
        options |= {"tasks": [], "ends": ends}
    begun, first = 0, "begin" if in_chats else "reset"
    per_iteration = learning.num_groups * learning.group_size if in_chats else 1
    with tempfile.TemporaryDirectory() as output:
        folder = str(BUILT_IN.get(training.config.model, training.config.model))
        command = [python, "benchmarks/peers/trl_grpo.py", folder, json.dumps(options | {"output": output})]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
            for line in process.stdout:
                if not line.startswith('{"'):
                    continue
                request = json.loads(line)
                if "result" in request:
                    result = request["result"]
                    rows = zip(result["whole"], result["rollout"], result["replies"], strict=True)
                    return [Cost(whole[0], rollout[0], whole[1], *replies) for whole, rollout, replies in rows]
                (name, value) = request.popitem()
                if name == first:
                    if begun and begun % per_iteration == 0:
                        between()
                    begun += 1
                process.stdin.write(json.dumps(getattr(server, name)(value)) + "\n")
                process.stdin.flush()
    raise RuntimeError("the peer ended without a result")


def main():
    sizes = {"iterations": 3, "groups": 4, "group_size": 8, "turns": 8, "tokens": 8}
    setup = {"game": "", "model": "nano_babyai", "examples": 0, "lr": 1e-3, "trl_python": "", "trl_rows": 0}
    parser = parser_of(__doc__, **sizes, **setup, threads=1)
    parser.add_argument("--apart", action="store_true", help="ours after TRL's: both need not fit into memory")
    options = parser.parse_args()
    size = options.group_size
    learning = {"num_groups": options.groups, "group_size": size, "group_sample": size, "learning_rate": options.lr}
    limits = {"max_turns": options.turns, "max_tokens": options.tokens}
    play = {"model": options.model, "dtype": "float32", "seed": 3}
    if options.game:
        play |= {"game": options.game, "turns": "chat", "eval_episodes": 8}
    else:
        play |= {"examples": options.examples, "missions": "go to"}
    config = make(TrainConfig, **PRESETS["babyai"] | learning | limits | play)
    timed = Timed(envs.make_host(config.game))
    training = TranscriptTraining(config, config.transcripts, config.game, timed.game, timed.game)
    print(machine())
    titles = "turns", "tokens", "CPU s", "of these rollouts", "s", "turns per CPU s", "turns per s", "first: CPU s"
    print_head("trainer", *titles, "row use", "learned")

    def costs_of_ours() -> list[Cost]:
        return [cost for _, cost in zip(range(options.iterations), ours(training, timed))]

    def show(name: str, first: list[Cost], costs: list[Cost]) -> None:
        cost, compiling = Cost(*np.sum(costs, axis=0)), np.sum(first, axis=0)[0]
        shares = ("" if np.isnan(share) else f"{share / len(costs):.2f}" for share in (cost.row_use, cost.learned))
        row = f"{cost.cpu:.1f}", f"{cost.rollout:.1f}", f"{cost.wall:.1f}"
        rates = f"{cost.turns / cost.cpu:.3f}", f"{cost.turns / cost.wall:.3f}"
        print_row(name, int(cost.turns), int(cost.tokens), *row, *rates, f"{compiling:.1f}", *shares)

    # 1. Ours with compilation, so that nothing of it falls between TRL's iterations.
    first = [] if options.apart else costs_of_ours()
    costs, again = [], ours(training, timed)

    def one_of_ours() -> None:
        if not options.apart:
            costs.append(next(again))

    # 2. TRL's, each after one of ours.
    if options.trl_python:
        shared = {
            "groups": options.groups, "group_size": size, **limits, "iterations": options.iterations + 1,
            "learning_rate": options.lr, "rows": options.trl_rows or options.groups * size, "threads": options.threads,
        }  # fmt: skip
        costs_of_trl = trl(options.trl_python, training, shared, one_of_ours)
        show("TRL", costs_of_trl[:-1], costs_of_trl[1:])
    # 3. Ours, where they have not been yet.
    first = first or costs_of_ours()
    costs += [next(again) for _ in range(len(costs), options.iterations)]
    show("ours", first, costs)


if __name__ == "__main__":
    main()
