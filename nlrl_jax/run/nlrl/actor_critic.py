"""The natural-language actor-critic as a training run, for any board game: its checkpoints, loop and judged mean."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from nlrl_jax.algorithms import language_actor_critic as nlac
from nlrl_jax.algorithms.language_actor_critic import ActorCriticSetup, ActorCriticState
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.usage import Usage
from nlrl_jax.backends.wrappers import metered
from nlrl_jax.roles.board_games import Viewer
from nlrl_jax.run import exchanges, local_models, loop
from nlrl_jax.run.reports import actor_critic as report
from nlrl_jax.types import LanguageModel, Learn, Pairs, Sampling


@flax.struct.dataclass
class LearnedModels:
    """The two models' trained collections, which a checkpoint holds.

    recent: policies of the previous iterations, the latest first; as many as the judged mean needs.
    """

    policy: Any
    value: Any
    iteration: jax.Array
    recent: tuple[Any, ...] = ()

    def learned(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("policy", "value", "iteration", "recent")}

    def judged(self) -> Any:
        """The mean of this and the recent policies, without the base model that fills `recent` at first."""
        policies = (self.policy, *self.recent)[: max(int(self.iteration), 1)]
        return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *policies)


@dataclasses.dataclass(eq=False)
class ActorCriticTrainer:
    """The actor-critic against one opponent, with its models; its state is a `LearnedModels`.

    Attributes:
      opponent: the name shown on the page.
      base: the model that both begin with. train: the collection of it that learns.
      teach_format: learns `format_policy` and `format_value`, which teach the reply formats before the first iteration.
      average: number of latest policies whose mean is evaluated.
      eval_games: greedy games of an evaluation.
      draw: a view's board -> the board on the page.
    """

    setup: ActorCriticSetup
    opponent: str
    base: LocalModel
    train: str
    teach_format: Learn
    format_policy: Pairs
    format_value: Pairs
    average: int
    eval_games: int
    seed: int
    run_dir: pathlib.Path
    usage: Usage
    draw: Callable[[str], str]

    def __post_init__(self):
        self.viewer = Viewer(self.setup.game)

    def init(self) -> LearnedModels:
        """The base model as policy and as value model, each after learning its reply format."""

        def learned(pairs):
            model = self.teach_format(self.base, pairs)[0] if pairs else self.base
            return local_models.on_device(model.variables[self.train])

        policy = learned(self.format_policy)
        value = learned(self.format_value)
        return LearnedModels(policy, value, jnp.zeros((), jnp.int32), (policy,) * (self.average - 1))

    def models(self, state: LearnedModels, buffer: tuple[Pairs, ...] = ()) -> ActorCriticState:
        """The state in algorithm 3's terms."""

        def with_learned(learned: Any) -> LanguageModel:
            return metered(self.base.with_variables({**self.base.variables, self.train: learned}), self.usage)

        return ActorCriticState(with_learned(state.policy), with_learned(state.value), buffer, int(state.iteration))

    def update(self, state: LearnedModels, key: jax.Array) -> tuple[LearnedModels, dict[str, float]]:
        """One iteration; its value data and its exchanges for the report go to the run's folder."""
        i = int(state.iteration)
        earlier = range(max(0, i - self.setup.config.buffer + 1), i)
        buffer = tuple(exchanges.read_pairs(self.values_file(n)) for n in earlier)
        seed = int(jax.random.randint(key, (), 0, 2**30))
        after, log = nlac.iterate(self.models(state, buffer), self.setup, self.viewer, seed)
        exchanges.write_pairs(self.values_file(i), after.buffer[-1])
        heading = f"iteration {i + 1}, against {self.opponent}"
        exchanges.write(self.run_dir, i, report.exchanges(log, heading, self.draw))
        policy, value = (model.facts.local.variables[self.train] for model in (after.policy, after.value))
        recent = (state.policy, *state.recent)[: self.average - 1]
        return LearnedModels(policy, value, jnp.asarray(i + 1, jnp.int32), recent), log.metrics

    def values_file(self, iteration: int) -> pathlib.Path:
        return self.run_dir / "values" / f"{iteration:05d}.jsonl"

    def evaluate(self, state: LearnedModels) -> dict[str, float]:
        """Greedy play, as in the paper, of the mean of the last policies: "win", "tie", "loss", "random_moves"."""
        greedy = Sampling(self.setup.config.rollout.max_tokens, 0.0)
        judged = self.models(state.replace(policy=state.judged()))
        return nlac.evaluate(judged, self.setup, self.viewer, self.eval_games, greedy, self.seed + 1)[0]


def train(trainer: ActorCriticTrainer, script: str, iterations: int, resume: bool) -> dict[str, Any]:
    """Trains in the trainer's folder. Returns results.json's content: see `ActorCriticTrainer.evaluate`."""
    columns = ("eval/win", "rollout/win", "random_moves", "value/contradicts", "value_sft/loss", "policy_sft/loss")
    plan = loop.Schedule(trainer.seed, iterations, 1, columns, resume)
    return loop.learn(trainer.run_dir, script, trainer.update, trainer.init(), plan, trainer.evaluate)
