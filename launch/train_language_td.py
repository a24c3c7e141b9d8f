"""Trains a language value function on breakthrough by language TD: a model learns to say who is ahead, and why.

    python -m launch.train_language_td --run_dir runs/language_td
    python -m launch.train_language_td --scale paper --dry_run

NLRL, algorithm 2, section 5.2. First, positions are collected from games between MCTS players of mixed skill, and a
strong one plays look-ahead variations from each; both are kept in RUN_DIR/data. Then the value model learns the
aggregator's summaries of the variations and of the model's own evaluations of their ends. Accuracy is on held-out
positions, against win rates by MCTS. The last line reads `advantage accuracy: <before> -> <after>`.

Departures from the paper: see `nlrl_jax/algorithms/language_td.py`. At nano scale rules stand in for the large
model, MCTS searches less, evaluations are written at temperature 0 and SFT restarts from the base model in every
iteration. `--format_examples` first teaches the reply format, with random advantages, to models other than nano_board.
"""

from __future__ import annotations

import dataclasses
import pathlib
import random
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from envs.breakthrough import prompts
from envs.breakthrough import rule_based as scripts
from envs.breakthrough.rules import board_game
from nlrl_jax.algorithms import language_td, language_td_data, mcts
from nlrl_jax.algorithms.language_td import LanguageTDConfig, ValueFunction
from nlrl_jax.algorithms.language_td_data import TDDataConfig
from nlrl_jax.algorithms.sft import SFTConfig
from nlrl_jax.backends.scripted import CountingModel, ScriptedModel
from nlrl_jax.backends.usage import Metered, Usage, describe_usage
from nlrl_jax.config import DTYPES, check, flat, option, part
from nlrl_jax.roles.board_games import TDRoles, Viewer
from nlrl_jax.rollouts.board_games import random_opponent
from nlrl_jax.run import app, cost, loop, models, players, records, results
from nlrl_jax.run.reports import language_td as language_td_report
from nlrl_jax.types import LanguageModel, Sampling

SCRIPT = "train_language_td"
MAY_CHANGE = ("iterations", "checkpoint_every", "micro_batch", "remat", "mesh", *models.MAY_CHANGE)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run computes. Defaults: nano scale; `--scale paper` has the paper's."""

    model: str = option("nano_board", "value model: nano_board, smollm2, a Hugging Face folder or a .gguf file")
    aggregator: str = option("scripted", "aggregator: scripted, endpoint, or a local model's name")
    first_values: str = option(
        "aggregator", "value model of the first iteration: aggregator (the paper) or value",
        choices=("value", "aggregator"),
    )  # fmt: skip
    style: str = option(
        "auto", "prompts: paper, compact, or auto: compact for the built-in models", choices=("auto", *prompts.STYLES)
    )
    data: TDDataConfig = part(
        TDDataConfig(12_000, 1000, simulations=100, rollouts=1, skills="2x1,8x1,32x1,64x4", judge_games=32)
    )
    threshold: float = option(0.4, "test positions with a win rate nearer to 0 are left out as level", least=0, most=1)
    iterations: int = option(4, "iterations of language TD", least=1)
    format_examples: int = option(0, "random evaluations that teach the reply format; nano_board knows it", least=0)
    learning: LanguageTDConfig = part(LanguageTDConfig(values=Sampling(64, 0.0, 50, 0.95)))
    restart: bool = option(True, "restart SFT from the base model in every iteration; false: continue")
    sft: SFTConfig = part(
        SFTConfig(learning_rate=1e-3, warmup=0.03, batch_size=2, max_length=256, packed=True),
        names={"max_length": "row_tokens"},
        without=("schedule", "weight_decay", "clip_norm", "b2", "seed"),
    )
    dtype: str = option("", "float32 or bfloat16; empty keeps the checkpoint's", choices=DTYPES)
    mesh: str = option("", players.MESH)
    seed: int = option(0, "everything random follows from it", least=0)
    checkpoint_every: int = option(1, "iterations between checkpoints", least=1)
    endpoint: models.EndpointOptions = part(models.EndpointOptions())
    endpoint_model: str = option("", "the endpoint's name for its model")

    def __post_init__(self):
        check(self)

    @property
    def roles(self) -> TDRoles:
        return prompts.roles(players.prompt_for(self.model, self.style))

    def first_value(self, aggregator: LanguageModel) -> ValueFunction | None:
        """The value function of the first iteration, None for the model's own. Rules do not need the paper's prompt."""
        if self.first_values == "value":
            return None
        if self.aggregator == "scripted":
            return ValueFunction(aggregator, self.roles.value, self.learning.values)
        return ValueFunction(aggregator, prompts.roles("paper").value, self.learning.aggregation)


PRESETS = {
    "nano": {},
    "paper": {
        "model": "Llama-3.1-8B-Instruct", "aggregator": "endpoint", "endpoint_model": "Llama-3.1-70B-Instruct",
        "first_values": "aggregator", "style": "paper", **flat(TDDataConfig()), "threshold": 0.2,
        "format_examples": 0, "temperature": 1.0, "max_tokens": 512, "restart": False, "epochs": 2,
        "learning_rate": 2e-5, "batch_size": 128, "row_tokens": 1024, "packed": False, "dtype": "bfloat16",
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
    """A run with its models and data; its state is a `Learned`."""

    def __init__(self, config: RunConfig, run_dir: pathlib.Path, usage: Usage):
        self.config, self.run_dir, self.usage, self.roles = config, run_dir, usage, config.roles
        self.learn = models.learner(dataclasses.replace(config.sft, seed=config.seed))
        mesh = players.parse_mesh(config.mesh)
        self.large = models.large_model(
            config.aggregator, scripts.SCRIPTS, run_dir, usage, config.endpoint, config.endpoint_model, mesh=mesh
        )
        self.base = models.trainable_model(config.model, config.dtype, config.sft.train, config.seed, mesh)
        self.start, self.game = self.base, board_game()
        self.data = language_td_data.load_or_make(
            self.game, config.data, config.seed, run_dir / "data"
        )  # takes minutes

    def init(self) -> Learned:
        """The base model, after it learned the reply format."""
        config = self.config
        if config.format_examples:
            chats = [self.roles.value(s.view) for s in self.data.train[: config.format_examples]]
            replies = ScriptedModel(scripts.SCRIPTS).complete(chats, Sampling(), "blind", config.seed)
            self.start, _ = self.learn(self.base, [(chat, r.text) for chat, r in zip(chats, replies, strict=True)])
        learned = self.start.variables[config.sft.train]
        return Learned(models.on_device(learned), jnp.zeros((), jnp.int32))

    def model(self, state: Learned):
        """The value model of a state, its calls counted."""
        variables = {**self.base.variables, self.config.sft.train: state.value}
        return Metered(self.base.with_variables(variables), self.usage)

    def update(self, state: Learned, key: jax.Array) -> tuple[Learned, dict[str, float]]:
        i, seed = int(state.iteration), int(jax.random.randint(key, (), 0, 2**30))
        first_value = self.config.first_value(self.large) if i == 0 else None
        learn = self.learn_anew if self.config.restart else self.learn
        value, targets, metrics = language_td.iterate(
            self.data.train, self.roles, self.model(state), self.large, learn, self.config.learning, seed, first_value
        )
        records.write(self.run_dir, i, language_td_report.learned(targets, i, _grid))
        learned = value.model.variables[self.config.sft.train]
        return Learned(learned, jnp.asarray(i + 1, jnp.int32)), metrics

    def learn_anew(self, model, pairs):
        """The starting model after SFT; `model` if no example fits."""
        learned, metrics = self.learn(Metered(self.start, self.usage), pairs)
        return (learned if metrics["examples"] else model), metrics

    def judge(self, state: Learned) -> tuple[language_td.Judged, list[str]]:
        """Accuracy on the test positions."""
        data, config = self.data, self.config
        return language_td.judge(
            data.test, data.win_rates, self.game.players, self.roles, self.model(state), config.learning.values,
            config.seed, config.threshold,
        )  # fmt: skip

    def evaluate(self, state: Learned) -> dict[str, float]:
        judged, _ = self.judge(state)
        return {"eval/accuracy": judged.accuracy, "eval/answered": judged.answered}


def _grid(board: str) -> str:
    """The drawn board without the names of its rows and columns."""
    *rows, letters = board.splitlines()
    return "\n".join(" ".join(row[-len(letters.strip()) :]) for row in rows)


def train(config: RunConfig, run_dir: pathlib.Path, resume: bool) -> dict[str, Any]:
    """Trains in an opened run folder. Returns results.json's content; writes the page too."""
    usage = models.ledger(run_dir)
    trainer = Trainer(config, run_dir, usage)
    state = trainer.init()
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
    results.write(run_dir, script=SCRIPT, before=before._asdict(), after=after._asdict())
    stored = results.read(run_dir)
    data, judged = trainer.data, (words_before, words_after)
    clear = [(data.test[n], data.win_rates[n]) for n in np.flatnonzero(np.abs(data.win_rates) >= config.threshold)]
    exchanges = language_td_report.judged(clear, *judged, trainer.game.players, _grid)
    exchanges += records.first_and_last(run_dir)
    language_td_report.write(run_dir, flat(config), stored["before"], stored["after"], exchanges, describe_usage(usage))
    return stored


def validate(config: RunConfig) -> None:
    """Refuses models that cannot do what the config asks, before anything is made; see `models.check_rows`."""
    game, large = board_game(), config.learning.aggregation.max_tokens
    view = Viewer(game).views(jax.tree.map(lambda leaf: leaf[None], game.init()))[0]  # has all pawns: the longest
    example = config.roles.value(view), scripts.blind({"view": view}, random.Random(0))
    rows = config.sft.max_length, config.learning.values.max_tokens
    models.check_rows(config.model, [example], *rows, large * (config.aggregator != "scripted"))
    models.check_large_model(config.aggregator, config.endpoint, config.endpoint_model, large)


def _sample(config: TDDataConfig, num: int, key: jax.Array) -> list[language_td.LookAhead]:
    """Early positions and look-ahead variations by random play: quick to make, as long as those of a run."""
    game = board_game()
    random_move = random_opponent(game)
    over = jax.vmap(game.is_terminal)
    policy = lambda key, positions: (jnp.where(over(positions), -1, random_move(key, positions)), None, None)
    start = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], num, axis=0), game.init())
    _, played = mcts.play_moves(game, policy, jax.random.fold_in(key, 0), start, 4)  # no game is over so early
    positions = jax.tree.map(lambda leaf: leaf[-1], played)
    repeated = jax.tree.map(lambda leaf: jnp.repeat(leaf, config.variations, axis=0), positions)
    ahead = mcts.play_moves(game, policy, jax.random.fold_in(key, 1), repeated, config.look_ahead)
    actions, reached = jax.device_get(ahead)
    return language_td.look_ahead(game, Viewer(game), positions, actions, reached, config.variations)


def dry_run(config: RunConfig) -> str:
    """Calls and tokens, counted in the whole run over a sample of positions with rules in the models' place."""
    data, seed = config.data, config.seed
    times = max(1, min(data.states, data.test_states) // 8)
    train, tests = data.states // times, data.test_states // times
    sample = _sample(data, train + tests, jax.random.key(seed))
    views = [s.view for s in sample[train:]]
    counts = {"own": Usage(), "large": Usage()}
    rules = CountingModel(scripts.SCRIPTS | {"judge": scripts.material})
    own, large = (Metered(rules, usage) for usage in counts.values())
    judge = lambda: language_td.judge(
        views, np.ones(tests), ("black", "white"), config.roles, own, config.learning.values, seed
    )
    judge()
    for i in range(config.iterations):
        first_value = config.first_value(large) if i == 0 else None
        learn = lambda model, pairs: (model, {})
        language_td.iterate(sample[:train], config.roles, own, large, learn, config.learning, seed, first_value)
        judge()
    judge()
    rows = [{**row, "role": f"{row['role']} ({who})"} for who, usage in counts.items() for row in usage.rows()]
    searches = data.states * data.variations * data.look_ahead + data.test_states * data.judge_games * 20
    return (
        f"own: {config.model}; large: {config.aggregator} {config.endpoint_model}. Nothing is sent. Rules replied in "
        f"{config.iterations} iterations on 1 in {times} positions. Replies, also those quoted in prompts, are counted "
        f"at their maximum length.\n{cost.calls_table(rows, times)}\n"
        f"SFT: {config.iterations} times {data.states:,} examples x {config.sft.epochs} epochs.\n"
        f"MCTS before it: {searches:,} moves of {data.simulations} simulations x {data.rollouts} rollouts = "
        f"{searches * data.simulations * data.rollouts / 1e9:.2f}e9 playouts (20 moves per judged game assumed)."
    )


def main(argv: list[str]) -> None:
    del argv
    config = app.parse(RunConfig, PRESETS, "scale")
    if flags.FLAGS.dry_run:
        print(dry_run(config))
        return
    validate(config)
    run_dir = app.take_run_dir(SCRIPT, config, MAY_CHANGE)
    stored = train(config, run_dir, flags.FLAGS.resume)
    before, after = stored["before"], stored["after"]
    print(f"report: {run_dir / 'report.html'}")
    print(f"answered: {before['answered']:.3f} -> {after['answered']:.3f} of {after['positions']:.0f} positions")
    print(f"advantage accuracy: {before['accuracy']:.3f} -> {after['accuracy']:.3f}")


define_flags = app.flags_of(
    RunConfig, PRESETS, "scale", dry_run="print the run's calls and tokens, and do nothing", several=True
)

if __name__ == "__main__":
    define_flags()
    app.run(main)
