"""Trains a language value function on breakthrough by language TD: a model learns to say who is ahead, and why.

    nlrl-jax train_language_td --run_dir runs/language_td
    nlrl-jax train_language_td --scale paper --dry_run

NLRL, algorithm 2, section 5.2. First, positions are collected from games between MCTS players of mixed skill, and a
strong one plays look-ahead variations from each; both are kept in RUN_DIR/data. Then the value model learns the
aggregator's summaries of the variations and of the model's own evaluations of their ends. Accuracy is measured on
held-out positions against win rates by MCTS, at two thresholds (`--threshold` and the authors' 0.2), and compared with
baselines that do not learn (`nlrl_jax/algorithms/td_controls.py`) and with other models as prompted (`--prompted
smollm2,endpoint`, Figure 5a). `--large_max_tokens` limits the replies of the large model. The last line reads
`advantage accuracy: <before> -> <after>`.

Departures from the paper: see `nlrl_jax/algorithms/language_td.py`. At nano scale rules replace the large
model, MCTS searches less, evaluations are written at temperature 0 and SFT restarts from the base model in every
iteration. `--format_examples` first teaches the reply format, with random advantages, to models other than nano_board.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import random
from typing import Any

import jax
from absl import flags

from nlrl_jax.algorithms import language_td, language_td_data, td_controls
from nlrl_jax.algorithms.language_td import LanguageTDConfig, ValueFunction
from nlrl_jax.algorithms.language_td_data import Data, TDDataConfig
from nlrl_jax.algorithms.sft import SFTConfig, learner
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.backends.usage import Usage
from nlrl_jax.config import check, flat, option, part, seed_option
from nlrl_jax.envs.breakthrough import prompts
from nlrl_jax.envs.breakthrough import rule_based as scripts
from nlrl_jax.envs.breakthrough.rules import board_game
from nlrl_jax.roles.board_games import TDRoles, Viewer
from nlrl_jax.run import app, endpoints, exchanges, models, players
from nlrl_jax.run.dry_run import CallPlan
from nlrl_jax.run.nlrl import language_td as language_td_run
from nlrl_jax.run.nlrl.language_td import LanguageTDTrainer, Sides
from nlrl_jax.run.nlrl.models import Models
from nlrl_jax.run.report import markdown
from nlrl_jax.run.reports import language_td as language_td_report
from nlrl_jax.types import Chat, LanguageModel, Pairs, Sampling

SCRIPT = "train_language_td"
AUTHORS = 0.2  # their threshold


@dataclasses.dataclass(frozen=True)
class LanguageTDRunConfig:
    """Everything that determines what a run computes. Defaults: nano scale; `--scale paper` has the paper's."""

    models: Models = part(Models())
    style: str = option(
        "auto", "prompts: paper, compact, or auto: compact for the built-in models", choices=("auto", *prompts.STYLES)
    )
    data: TDDataConfig = part(
        TDDataConfig(12_000, 1000, simulations=100, rollouts=1, skills="2x1,8x1,32x1,64x4", judge_games=32)
    )
    threshold: float = option(0.4, "test positions with a win rate closer to 0 are left out", least=0, most=1)
    iterations: int = option(4, "iterations of language TD; 0: only the baselines that do not learn", least=0)
    format_examples: int = option(0, "random evaluations that teach the reply format; nano_board needs none", least=0)
    learning: LanguageTDConfig = part(LanguageTDConfig(values=Sampling(64, 0.0, 50, 0.95)))
    restart: bool = option(True, "restart SFT from the base model in every iteration; false: continue")
    sft: SFTConfig = part(
        SFTConfig(learning_rate=1e-3, warmup=0.03, batch_size=2, max_length=256, packed=True),
        names={"max_length": "row_tokens"},
        without=("schedule", "warmup", "weight_decay", "clip_norm", "b2", "seed"),
    )
    positions_dir: str = option("", "the folder of positions, which several runs may share; empty: RUN_DIR/data")
    seed: int = seed_option("everything random follows from it")

    def __post_init__(self):
        check(self)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The run's own first."""
        return tuple(dict.fromkeys((self.threshold, AUTHORS)))

    @property
    def roles(self) -> TDRoles:
        """The prompts of the model that learns."""
        return self.roles_of(self.models.learner.model)

    def roles_of(self, model: str) -> TDRoles:
        """The prompts of a model by its name."""
        return prompts.roles(players.prompt_for(model, self.style))

    def first_value(self, aggregator: LanguageModel) -> ValueFunction:
        """The value function of the first iteration, which is the aggregator. Rules do not need the paper's prompt."""
        if self.models.aggregator == "scripted":
            return ValueFunction(aggregator, self.roles.value, self.learning.values)
        return ValueFunction(aggregator, prompts.roles("paper").value, self.learning.aggregation)


PRESETS = {
    "nano": {},
    "paper": {
        "model": "Llama-3.1-8B-Instruct", "aggregator": "endpoint", "endpoint_model": "Llama-3.1-70B-Instruct",
        "style": "paper", **flat(TDDataConfig()), "threshold": 0.2,
        "format_examples": 0, "temperature": 1.0, "max_tokens": 512, "restart": False, "epochs": 2,
        "learning_rate": 2e-5, "batch_size": 128, "row_tokens": 1024, "packed": False, "dtype": "bfloat16",
    },
}  # fmt: skip


COMMAND = app.Command(
    SCRIPT, LanguageTDRunConfig, PRESETS, "scale", dry_run="print the run's calls and tokens, then stop", several=True,
    may_change=("iterations", "learning_rate", "micro_batch", "remat", "mesh"),
)  # fmt: skip


def trainer_of(
    config: LanguageTDRunConfig,
    base: LocalModel,
    positions: Data,
    large: LanguageModel,
    run_dir: pathlib.Path,
    usage: Usage,
) -> LanguageTDTrainer:
    """The run with its models and its data.

    Args:
      base: the model that learns, as it begins. large: the aggregator.
    """
    roles = config.roles
    chats = [roles.value(position.view) for position in positions.train[: config.format_examples]]
    replies = ScriptedModel(scripts.SCRIPTS).complete(chats, Sampling(), "blind", config.seed)
    return LanguageTDTrainer(
        game=board_game(), roles=roles, data=positions, base=base, train=config.sft.train, large=large,
        first_value=config.first_value(large), learn=learner(dataclasses.replace(config.sft, seed=config.seed)),
        learning=config.learning, restart=config.restart, seed=config.seed, thresholds=config.thresholds,
        format_pairs=[(chat, reply.text) for chat, reply in zip(chats, replies, strict=True)],
        run_dir=run_dir, usage=usage, draw=_grid,
    )  # fmt: skip


def controls(trainer: LanguageTDTrainer, data: TDDataConfig, aggregator: str) -> dict[str, Sides]:
    """What does not learn, on the same positions. The target is a local large model's if the run has one, else by rule:
    an endpoint is never asked.

    Args:
      data: how the positions were made. aggregator: the large model's name.
    """
    value, large = trainer.first_value, trainer.large
    if aggregator in ("scripted", "endpoint"):
        large = ScriptedModel(scripts.SCRIPTS)
        value = ValueFunction(large, trainer.roles.value, trainer.learning.values)
    measured = trainer.data, data, trainer.roles, value, large, trainer.learning
    return td_controls.controls(trainer.game, *measured, scripts.RULES, trainer.seed)


def _grid(board: str) -> str:
    """The board as text, without the labels of rows and columns."""
    *rows, letters = board.splitlines()
    return "\n".join(" ".join(row[-len(letters.strip()) :]) for row in rows)


def validate(config: LanguageTDRunConfig, ask: bool) -> None:
    """Refuses models that cannot do what the config asks, before anything is made; see `Models.validate`."""
    game = board_game()
    view = Viewer(game).views(jax.tree.map(lambda leaf: leaf[None], game.init()))[0]  # has all pawns: the longest
    example = config.roles.value(view), scripts.blind({"view": view}, random.Random(0))
    tokens = config.learning.values.max_tokens, config.learning.aggregation.max_tokens

    def prompt_of(model: str) -> Chat:
        return config.roles_of(model).value(view)

    config.models.validate([example], config.sft.max_length, *tokens, prompt_of, ask)


def dry_run(config: LanguageTDRunConfig) -> str:
    """Calls and tokens, counted in two iterations on a sample of positions with rules in the models' place."""
    data, seed, iterations = config.data, config.seed, config.iterations
    times = max(1, min(data.states, data.test_states) // 8)
    train, tests = data.states // times, data.test_states // times
    sample = language_td_data.sample(board_game(), data, train + tests, jax.random.key(seed))
    views = [s.view for s in sample[train:]]
    plan = CallPlan(scripts.SCRIPTS | {"judge": scripts.material})
    judge = plan.model(times * (iterations + 2), "{} (own)", is_paid=False)
    language_td.judge(views, config.roles, judge, config.learning.values, seed)
    # The first iteration asks the large model for its values, all others the model that learns: two are played.
    for i, repeats in enumerate((1, iterations - 1)[: min(iterations, 2)]):
        learner = plan.model(times * repeats, "{} (own)", is_paid=False)
        large = plan.model(times * repeats, "{} (large)", is_paid=config.models.is_paid)
        values = plan.model(0, "{} (large)", is_paid=config.models.is_paid, once={"value": times})
        first_value = config.first_value(values) if i == 0 else None

        def learn(model: LanguageModel, pairs: Pairs) -> tuple[LanguageModel, dict[str, float]]:
            return model, {}

        language_td.iterate(sample[:train], config.roles, learner, large, learn, config.learning, seed, first_value)
    for name in config.models.labels.values():
        prompted = plan.model(0, "{} (as prompted)", is_paid=name == "endpoint", once={"judge": times})
        language_td.judge(views, config.roles_of(name), prompted, config.learning.aggregation, seed)
    searches = data.states * data.variations * data.look_ahead + data.test_states * data.judge_games * 20
    learner, name = config.models.learner.model, config.models.endpoint.endpoint_model
    return (
        f"own: {learner}; large: {config.models.aggregator} {name}. Nothing is sent. Rules replied in "
        f"{iterations} iterations on 1 in {times} positions. Replies, also those quoted in prompts, are counted "
        f"at their maximum length.\n{plan.table(config.models.endpoint.token_budget, 'iterations', iterations)}\n"
        f"SFT: {iterations} times {data.states:,} examples x {config.sft.epochs} epochs.\n"
        f"MCTS before it: {searches:,} moves of {data.simulations} simulations x {data.rollouts} rollouts = "
        f"{searches * data.simulations * data.rollouts / 1e9:.2f}e9 playouts (20 moves per judged game assumed)."
    )


def main(argv: list[str]) -> None:
    del argv
    config = COMMAND.parse()
    endpoints.check_endpoint_is_used(config.models.aggregator, config.models.prompted)
    if flags.FLAGS.dry_run:
        print(dry_run(config))
        return
    validate(config, ask=not flags.FLAGS.resume)
    run_dir, resume = COMMAND.open(config)
    usage = models.ledger(run_dir)
    large = config.models.large(config.models.aggregator, scripts.SCRIPTS, run_dir, usage)
    base = config.models.learner.load(config.sft.train, config.seed)
    folder = pathlib.Path(os.path.expanduser(config.positions_dir)) if config.positions_dir else run_dir / "data"
    positions = language_td_data.load_or_make(board_game(), config.data, config.seed, folder)
    trainer = trainer_of(config, base, positions, large, run_dir, usage)

    def measure_others() -> dict[str, dict[str, float]]:
        sides = controls(trainer, config.data, config.models.aggregator)
        greedy = dataclasses.replace(config.learning.aggregation, temperature=0.0)
        for label, name in config.models.labels.items():
            model = config.models.large(name, scripts.SCRIPTS, run_dir, usage)
            sides[label] = trainer.judged_by(model, config.roles_of(name), greedy)[0]
        return {name: trainer.assess(chosen) for name, chosen in sides.items()}

    def show(stored: dict[str, Any], samples: list[exchanges.Exchange]) -> None:
        language_td_report.write(run_dir, flat(config), stored, samples, usage, config.thresholds)

    stored = language_td_run.train(trainer, measure_others, show, SCRIPT, config.iterations, resume)
    before, after = stored["before"], stored["after"]
    print(markdown(language_td_report.table(stored, config.thresholds)))
    print(f"report: {run_dir / 'report.html'}")
    print(f"answered: {before['answered']:.3f} -> {after['answered']:.3f} of {after['positions']:.0f} positions")
    print(f"advantage accuracy: {before['accuracy']:.3f} -> {after['accuracy']:.3f}")


if __name__ == "__main__":
    COMMAND.run(main)
