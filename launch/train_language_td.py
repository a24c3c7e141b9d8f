"""Trains a language value function on breakthrough by language TD: a model learns to say who is ahead, and why.

    python -m launch.train_language_td --run_dir runs/language_td
    python -m launch.train_language_td --scale paper --dry_run

NLRL, algorithm 2, section 5.2. First positions are collected from games between MCTS players of mixed skill, and a
strong one plays look-ahead variations from each; both are kept in RUN_DIR/data. Then the value model is trained on what
the aggregator makes of the variations and of the model's own evaluations of where they end. Accuracy is on positions
that training never saw, against win rates by MCTS. The last line reads `advantage accuracy: <before> -> <after>`.

Departures from the paper: see `nlrl_jax/algorithms/language_td.py`. At nano scale rules stand in for the large
model, MCTS searches less, evaluations are written at temperature 0 and SFT restarts from the base model in every
iteration. `--format_examples` first teaches another model than nano_board the form, with advantages drawn by lot.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from envs.breakthrough import prompts as prompts
from envs.breakthrough import rule_based as scripts
from envs.breakthrough.rules import board_game
from nlrl_jax.algorithms import language_td, language_td_data
from nlrl_jax.algorithms.language_td import LanguageTDConfig
from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.backends.usage import Metered, Usage
from nlrl_jax.config import check_numbers, option
from nlrl_jax.files import write_atomically
from nlrl_jax.roles.board_games import Viewer
from nlrl_jax.run import app, loop, models, players
from nlrl_jax.run import flags as config_flags
from nlrl_jax.run.reports import language_td as language_td_report
from nlrl_jax.types import Sampling

FIRST_VALUES = ("value", "aggregator")


@dataclasses.dataclass(frozen=True)
class RunConfig(models.EndpointOptions):
    """Everything that decides what a run computes. Defaults: nano scale; `--scale paper` has the paper's.

    Raises:
      ValueError: a field outside its range.
    """

    model: str = option("nano_board", "value model: nano_board, smollm2, a Hugging Face folder or a .gguf file")
    aggregator: str = option("scripted", "who aggregates: scripted, endpoint, or a local model's name")
    first_values: str = option("aggregator", "who evaluates in the first iteration: aggregator (the paper) or value")
    style: str = option("auto", "prompts: paper, compact, or auto: compact for the built-in models")
    states: int = option(12_000, "positions to learn from")
    test_states: int = option(1000, "positions to judge on, none of which is learned from")
    look_ahead: int = option(4, "moves of a variation [l]")
    variations: int = option(4, "variations a position, before duplicates are removed [K]")
    simulations: int = option(100, "MCTS simulations a move of the policy that is evaluated")
    rollouts: int = option(1, "random playouts a simulation")
    skills: str = option("2x1,8x1,32x1,64x4", "simulations x rollouts of the players whose games give the positions")
    judge_games: int = option(32, "games that measure the win rate of a test position")
    threshold: float = option(0.4, "test positions with a win rate nearer to 0 are left out as level")
    iterations: int = option(4, "iterations of language TD")
    format_examples: int = option(0, "evaluations by lot that teach the form first; nano_board knows it")
    temperature: float = option(0.0, "of the value model's evaluations; the paper: 1")
    max_tokens: int = option(64, "tokens an evaluation at most")
    large_max_tokens: int = option(512, "tokens an aggregation at most")
    restart: bool = option(True, "SFT starts from the base model in every iteration; false: goes on from the last one")
    epochs: int = option(2, "passes over the data of an iteration")
    learning_rate: float = option(1e-3, "SFT's learning rate")
    warmup: float = option(0.03, "share of SFT's steps in which the learning rate rises")
    batch_size: int = option(2, "rows a gradient step")
    row_tokens: int = option(256, "tokens a row; packed: several examples share one")
    packed: bool = option(True, "put several examples into one row")
    train: str = option("params", "what SFT changes: params or lora")
    dtype: str = option("", "float32 or bfloat16; empty keeps the checkpoint's")
    seed: int = option(0, "everything random follows from it")
    checkpoint_every: int = option(1, "iterations between checkpoints")
    endpoint_model: str = option("", "an endpoint's name for its model")

    def __post_init__(self):
        at_least_one = (
            "states", "test_states", "look_ahead", "variations", "simulations", "rollouts", "judge_games", "iterations",
            "max_tokens", "large_max_tokens", "epochs", "batch_size", "row_tokens", "checkpoint_every", "concurrency",
        )  # fmt: skip
        not_negative = ("threshold", "format_examples", "temperature", "warmup", "seed", "token_budget")
        check_numbers(self, at_least_one, not_negative, ("learning_rate",))
        if self.threshold > 1:
            raise ValueError(f"--threshold is {self.threshold}; no win rate is further from 0 than 1")
        if self.first_values not in FIRST_VALUES:
            raise ValueError(f"--first_values is {self.first_values!r}; choose {' or '.join(FIRST_VALUES)}")
        language_td_data.parse_skills(self.skills)
        models.learner(self, self.learning_rate, self.warmup)
        prompts.roles(players.prompt_for(self.model, self.style))


PRESETS = {
    "nano": {},
    "paper": {
        "model": "Llama-3.1-8B-Instruct", "aggregator": "endpoint", "endpoint_model": "Llama-3.1-70B-Instruct",
        "first_values": "aggregator", "style": "paper", "states": 45_000, "test_states": 3000, "simulations": 1000,
        "rollouts": 100, "skills": ",".join(f"{s}x{r}" for s in (2, 10, 100, 1000) for r in (1, 10, 100, 1000)),
        "judge_games": 100, "threshold": 0.2, "format_examples": 0, "temperature": 1.0, "max_tokens": 512,
        "restart": False, "epochs": 2, "learning_rate": 2e-5, "batch_size": 128, "row_tokens": 1024, "packed": False,
        "dtype": "bfloat16",
    },
}  # fmt: skip


@flax.struct.dataclass
class Learned:
    """What a checkpoint holds: the value model's trained collection."""

    value: Any
    iteration: jax.Array

    def learned(self) -> dict[str, Any]:
        return {"value": self.value, "iteration": self.iteration}


class Trainer:
    """A run with its models and data; what changes is in the state."""

    def __init__(self, config: RunConfig, run_dir: pathlib.Path, usage: Usage):
        self.config, self.run_dir, self.usage = config, run_dir, usage
        self.roles = prompts.roles(players.prompt_for(config.model, config.style))
        warm = config.temperature > 0
        self.sampling = Sampling(config.max_tokens, config.temperature, 50 if warm else 0, 0.95 if warm else 1.0)
        large = Sampling(config.large_max_tokens, 1.0, 50, 0.95)
        self.algorithm = LanguageTDConfig(self.sampling, large)
        self.learn = models.learner(config, config.learning_rate, config.warmup)
        self.large = models.large_model_of(config, scripts.SCRIPTS, run_dir, usage)
        # A large model needs to be told what it evaluates; rules know.
        scripted = config.aggregator == "scripted"
        first = (self.roles.value, self.sampling) if scripted else (prompts.roles("paper").value, large)
        self.first = language_td.Evaluator(self.large, *first) if config.first_values == "aggregator" else None
        self.base = models.trainable_model(config)
        self.start = self.base
        self.data = language_td_data.load_or_make(config, run_dir / "data")  # last: it takes minutes

    def init(self) -> Learned:
        """The base model, after the form of an evaluation was learned."""
        config = self.config
        if config.format_examples:
            chats = [self.roles.value(s.view) for s in self.data.train[: config.format_examples]]
            blind = ScriptedModel(scripts.SCRIPTS).complete(chats, Sampling(), "blind", config.seed)
            taught = [(chat, reply.text) for chat, reply in zip(chats, blind, strict=True)]
            self.start, _ = self.learn(self.base, taught)
        learned = self.start.variables[config.train]
        return Learned(models.on_device(learned), jnp.zeros((), jnp.int32))

    def model(self, state: Learned):
        """The value model of a state, its calls counted."""
        variables = {**self.base.variables, self.config.train: state.value}
        return Metered(self.base.with_variables(variables), self.usage)

    def update(self, state: Learned, key: jax.Array) -> tuple[Learned, dict[str, float]]:
        i, seed = int(state.iteration), int(jax.random.randint(key, (), 0, 2**30))
        evaluator = self.first if i == 0 else None
        learn = self.learn_anew if self.config.restart else self.learn
        value, targets, metrics = language_td.iterate(
            self.data.train, self.roles, self.model(state), self.large, learn, self.algorithm, seed, evaluator
        )
        language_td_report.write_record(self.run_dir, i, targets)
        learned = value.model.variables[self.config.train]
        return Learned(learned, jnp.asarray(i + 1, jnp.int32)), metrics

    def learn_anew(self, model, pairs):
        """What the first model learns from the data; `model` where there is none to learn from."""
        learned, metrics = self.learn(Metered(self.start, self.usage), pairs)
        return (learned if metrics["examples"] else model), metrics

    def judge(self, state: Learned) -> tuple[language_td.Judged, list[str]]:
        """Accuracy on the test positions."""
        d, c = self.data, self.config
        model = self.model(state)
        return language_td.judge(d.test, d.win_rates, d.players, self.roles, model, self.sampling, c.seed, c.threshold)

    def evaluate(self, state: Learned) -> dict[str, float]:
        judged, _ = self.judge(state)
        return {"eval/accuracy": judged.accuracy, "eval/answered": judged.answered}


def train(config: RunConfig, run_dir: pathlib.Path, resume: bool) -> dict[str, Any]:
    """Trains in an opened run folder. Returns {"before", "after": {"accuracy", "answered", ...}}; writes the report."""
    usage = Usage(run_dir)
    trainer = Trainer(config, run_dir, usage)
    data, state = trainer.data, trainer.init()
    before, words_before = trainer.judge(state)
    print(f"before: accuracy {before.accuracy:.3f} on {before.positions} positions ({before.level} level)", flush=True)
    if resume:
        state = loop.restore(run_dir, state)
    state = loop.train(
        run_dir,
        trainer.update,
        state,
        seed=config.seed,
        iterations=config.iterations,
        checkpoint_every=config.checkpoint_every,
        columns=("eval/accuracy", "eval/answered", "value/undecided", "sft/loss"),
        resume=resume,
        evaluate=lambda done, state: trainer.evaluate(state),
    )
    after, words_after = trainer.judge(state)
    results = {"before": before._asdict(), "after": after._asdict()}
    write_atomically(run_dir / "results.json", json.dumps(results, indent=2))
    shown = np.flatnonzero(np.abs(data.win_rates) >= config.threshold)
    language_td_report.write(
        run_dir, dataclasses.asdict(config), results, data, shown, words_before, words_after, usage
    )
    return results


def check(config: RunConfig) -> None:
    """Refuses before anything is made what its models cannot do; see `language_models.check_models`."""
    game = board_game()
    view = Viewer(game).views(jax.tree.map(lambda leaf: leaf[None], game.init()))[0]  # has all pawns: the longest
    roles = prompts.roles(players.prompt_for(config.model, config.style))
    models.check_models(config, [(roles.value(view), scripts.blind({"view": view}, random.Random(0)))])


def main(argv: list[str]) -> None:
    del argv
    config = app.parse(RunConfig, PRESETS, "scale")
    if flags.FLAGS.dry_run:
        print(language_td_report.plan(config))
        return
    check(config)
    run_dir = app.take_run_dir(
        "train_language_td", config, may_change=("iterations", "checkpoint_every", *models.MAY_CHANGE)
    )
    results = train(config, run_dir, flags.FLAGS.resume)
    before, after = results["before"], results["after"]
    print(f"report: {run_dir / 'report.html'}")
    print(f"answered: {before['answered']:.3f} -> {after['answered']:.3f} of {after['positions']} positions")
    print(f"advantage accuracy: {before['accuracy']:.3f} -> {after['accuracy']:.3f}")


def define_flags() -> None:
    config_flags.define(RunConfig, PRESETS, "scale")
    flags.DEFINE_boolean("dry_run", False, "print what the run would ask of the models, and stop")
    app.define_run_flags()


if __name__ == "__main__":
    define_flags()
    app.run(main)
