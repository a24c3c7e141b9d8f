"""Language TD as a training run, for any board game: its checkpoints, loop and accuracy."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.algorithms import language_td
from nlrl_jax.algorithms.language_td import LanguageTDConfig, ValueFunction
from nlrl_jax.algorithms.language_td_data import Data
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.usage import Usage
from nlrl_jax.backends.wrappers import metered
from nlrl_jax.roles.board_games import TDRoles
from nlrl_jax.run import exchanges, local_models, loop, results
from nlrl_jax.run.reports import language_td as report
from nlrl_jax.types import BoardGame, LanguageModel, Learn, Pairs, Sampling

COLUMNS = ("eval/accuracy", "eval/answered", "value/undecided", "sft/loss")
Sides = Sequence[str | None]


@flax.struct.dataclass
class LearnedValue:
    """What a checkpoint holds: the value model's trained collection."""

    value: Any
    iteration: jax.Array

    def learned(self) -> dict[str, Any]:
        return {"value": self.value, "iteration": self.iteration}


@dataclasses.dataclass(eq=False)
class LanguageTDTrainer:
    """A run with its models and data; its state is a `LearnedValue`.

    Attributes:
      base: the value model before it learned anything. train: the collection of it that learns.
      first_value: evaluates in the first iteration in place of the value model.
      restart: SFT begins from the base model in every iteration.
      thresholds: positions whose win rate is closer to 0 are level; the run's own comes first.
      format_pairs: examples that teach the reply format before the first iteration.
      draw: a view's board -> the board on the page.
    """

    game: BoardGame
    roles: TDRoles
    data: Data
    base: LocalModel
    train: str
    large: LanguageModel
    first_value: ValueFunction
    learn: Learn
    learning: LanguageTDConfig
    restart: bool
    seed: int
    thresholds: tuple[float, ...]
    format_pairs: Pairs
    run_dir: pathlib.Path
    usage: Usage
    draw: Callable[[str], str]

    def init(self) -> LearnedValue:
        """The base model, after it learned the reply format."""
        self.start = self.learn(self.base, self.format_pairs)[0] if self.format_pairs else self.base
        return LearnedValue(local_models.on_device(self.start.variables[self.train]), jnp.zeros((), jnp.int32))

    def model(self, state: LearnedValue) -> LanguageModel:
        """The value model of a state, its calls counted."""
        return metered(self.base.with_variables({**self.base.variables, self.train: state.value}), self.usage)

    def update(self, state: LearnedValue, key: jax.Array) -> tuple[LearnedValue, dict[str, float]]:
        i, seed = int(state.iteration), int(jax.random.randint(key, (), 0, 2**30))
        learn = self.learn_anew if self.restart else self.learn
        first_value = self.first_value if i == 0 else None
        value, targets, metrics = language_td.iterate(
            self.data.train, self.roles, self.model(state), self.large, learn, self.learning, seed, first_value
        )
        exchanges.write(self.run_dir, i, report.learned(targets, i, self.draw))
        return LearnedValue(value.facts.local.variables[self.train], jnp.asarray(i + 1, jnp.int32)), metrics

    def learn_anew(self, model, pairs):
        """The starting model after SFT; `model` if no example fits."""
        learned, metrics = self.learn(metered(self.start, self.usage), pairs)
        return (learned if metrics["examples"] else model), metrics

    def judge(self, state: LearnedValue) -> tuple[Sides, list[str]]:
        """Who is ahead in each test position, and the words that say so."""
        return self.judged_by(self.model(state), self.roles, self.learning.values)

    def judged_by(self, model: LanguageModel, roles: TDRoles, sampling: Sampling) -> tuple[Sides, list[str]]:
        """The same by any model, which is not asked about positions that are level at every threshold."""
        clear = np.abs(self.data.win_rates) >= min(self.thresholds)
        return language_td.judge(self.data.test, roles, model, sampling, self.seed, clear)

    def assess(self, sides: Sides) -> dict[str, float]:
        """Accuracy and what belongs to it at every threshold: "accuracy", "accuracy_0.2", ..."""
        rows: dict[str, float] = {}
        for n, threshold in enumerate(self.thresholds):
            judged = language_td.assess(sides, self.data.win_rates, self.game.players, threshold)
            suffix = f"_{threshold:g}" if n else ""
            rows |= {f"{name}{suffix}": value for name, value in judged._asdict().items()}
        return rows

    def evaluate(self, state: LearnedValue) -> dict[str, float]:
        assessed = self.assess(self.judge(state)[0])
        return {f"eval/{name}": value for name, value in assessed.items() if name.startswith(("accuracy", "answered"))}


def train(
    trainer: LanguageTDTrainer,
    measure_others: Callable[[], dict[str, dict[str, float]]],
    show: Callable[[dict[str, Any], list[exchanges.Exchange]], Any],
    script: str,
    iterations: int,
    resume: bool,
) -> dict[str, Any]:
    """Trains in the trainer's folder. Returns results.json's content.

    Args:
      measure_others: assesses what does not learn on the same positions, at the end.
      show: writes the page of results.json's content and some exchanges.
    """
    run_dir, state = trainer.run_dir, trainer.init()
    sides, words_before = trainer.judge(state)
    before = trainer.assess(sides)
    print(f"before: accuracy {before['accuracy']:.3f} on {before['positions']} positions", flush=True)
    if resume:
        state = loop.restore(run_dir, state)

    def finish(state: LearnedValue) -> None:
        sides, words_after = trainer.judge(state)
        after, done = trainer.assess(sides), int(state.iteration)
        results.write(run_dir, script=script, before=before, after=after, beside=measure_others(), iterations=done)
        words = zip(trainer.data.test, trainer.data.win_rates, words_before, words_after, strict=True)
        judged = [row for row in words if abs(row[1]) >= trainer.thresholds[0]]
        learned_from = exchanges.first_and_last(run_dir)
        samples = report.judged(judged, trainer.game.players, trainer.draw, learning=done > 0)
        show(results.read(run_dir), samples + learned_from)

    plan = loop.Schedule(trainer.seed, iterations, 1, COLUMNS, resume)
    loop.train(run_dir, trainer.update, state, plan, lambda done, state: trainer.evaluate(state), finish)
    return results.read(run_dir)
