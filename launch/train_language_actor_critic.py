"""Trains a language policy and a language value function on tic-tac-toe by the natural-language actor-critic.

    nlrl-jax train_language_actor_critic --run_dir runs/actor_critic
    nlrl-jax train_language_actor_critic --scale paper --dry_run

NLRL, algorithm 3, section 5.3. At nano scale the built-in model is both policy and value model, and rules aggregate and
improve (`envs/tic_tac_toe/rule_based.py`); `--aggregator endpoint` prompts a server instead, whose replies
`--large_max_tokens` limits. For each opponent, the LLM-PPO baseline trains on as many games from the same prompt
(`--ppo`; for its options, run `train_language_ppo` alone), and other models can play as prompted (`--prompted
smollm2,endpoint`), all in one plot. The last lines read `win rate (OPPONENT): <before> -> <after>`.

Departures from the paper: see `nlrl_jax/algorithms/language_actor_critic.py` and `language_ppo.py`. At nano scale the
learning rate of SFT is larger and its batches smaller, as the model has a thousandth of the paper's weights; moves are
proposed at a higher temperature, each is evaluated several times, a position's count in the data is limited, and the
judged policy is the mean of the last iterations' weights. docs/lab/measurements_nlrl.md gives the reason for each.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
import random
from typing import Any

import jax
from absl import flags

from nlrl_jax import envs
from nlrl_jax.algorithms import language_actor_critic as nlac
from nlrl_jax.algorithms.language_actor_critic import ActorCriticConfig, ActorCriticSetup, ActorCriticState
from nlrl_jax.algorithms.language_ppo import LanguagePPOConfig
from nlrl_jax.algorithms.sft import SFTConfig, learner
from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.backends.usage import Usage
from nlrl_jax.config import check, flat, option, part, seed_option
from nlrl_jax.envs.tic_tac_toe import prompts
from nlrl_jax.envs.tic_tac_toe import rule_based as scripts
from nlrl_jax.envs.tic_tac_toe.rules import board_game
from nlrl_jax.roles.board_games import ActorCriticRoles, Viewer
from nlrl_jax.rollouts import board_games
from nlrl_jax.rollouts.board_games import random_views
from nlrl_jax.run import app, endpoints, exchanges, models, players, results
from nlrl_jax.run.directory import check_done
from nlrl_jax.run.dry_run import CallPlan
from nlrl_jax.run.flags import leave_out
from nlrl_jax.run.nlrl import actor_critic, language_ppo
from nlrl_jax.run.nlrl.actor_critic import ActorCriticTrainer
from nlrl_jax.run.nlrl.models import Models
from nlrl_jax.run.reports import actor_critic as actor_critic_report
from nlrl_jax.text.word_policy import MovePolicy
from nlrl_jax.types import Chat, LanguageModel, Learn, Pairs, Sampling
from nlrl_jax.weights.load import BUILT_IN

SCRIPT = "train_language_actor_critic"
OPPONENTS = {"first_move": board_games.first_move_opponent, "random": board_games.random_opponent}


@dataclasses.dataclass(frozen=True)
class ActorCriticRunConfig:
    """Everything that determines what a run computes. Defaults: nano scale; `--scale paper` has the paper's."""

    models: Models = part(Models())
    words: str = option(
        "threats", "what the rules write in addition to a number: threats, counts or number; see "
        "envs/tic_tac_toe/rule_based.py", choices=scripts.WORDS,
    )  # fmt: skip
    opponent: str = option("both", "first_move, random or both", choices=("both", *OPPONENTS))
    style: str = option(
        "auto", "prompts: paper, paper_zero_shot (no examples), compact, or auto: compact for the built-in models",
        choices=("auto", *prompts.STYLES),
    )  # fmt: skip
    iterations: int = option(5, "iterations", least=1)
    learning: ActorCriticConfig = part(
        ActorCriticConfig(
            games=320, num_values=8, max_visits=4, rollout=Sampling(32, 1.0, 50, 0.95), candidates=Sampling(32, 1.2),
            values=Sampling(32, 0.5),
        ),
        without=("num_samples",),
    )  # fmt: skip
    average: int = option(3, "iterations whose policies' weights are averaged for evaluation; the paper: 1", least=1)
    format_examples: int = option(0, "random replies that first teach the reply format; nano_board needs none", least=0)
    sft: SFTConfig = part(
        SFTConfig(learning_rate=1e-3, epochs=4, batch_size=4, max_length=256, packed=True),
        names={"max_length": "row_tokens"},
        without=("schedule", "warmup", "weight_decay", "clip_norm", "b2", "seed"),
    )
    policy_learning_rate: float = option(
        2e-4, "learning rate of the policy's SFT; too high a rate ends exploration", above=0
    )
    eval_games: int = option(1000, "greedy games per evaluation, half of them on each side", least=1)
    ppo: bool = option(True, "train the LLM-PPO baseline on as many games")
    seed: int = seed_option("everything random follows from it", counted_up=True)

    def __post_init__(self):
        check(self)
        if self.sft.train == "lora" and self.average > 1:
            raise ValueError(
                f"--average is {self.average}, but the mean of adapters is not the mean of the adapted weights; "
                "with --train lora it must be 1"
            )

    @property
    def algorithm(self) -> ActorCriticConfig:
        """The algorithm's config: the policy's reply length for all small roles, the aggregator's for the improver."""
        config, tokens = self.learning, self.learning.rollout.max_tokens
        return dataclasses.replace(
            config,
            candidates=dataclasses.replace(config.candidates, max_tokens=tokens),
            values=dataclasses.replace(config.values, max_tokens=tokens),
            improvement=config.aggregation,
        )

    @property
    def ppo_learning(self) -> LanguagePPOConfig:
        """How LLM-PPO learns: from as many games, with its learning rates for a model of this size."""
        start = language_ppo.NANO if self.models.learner.model in BUILT_IN else LanguagePPOConfig()
        return dataclasses.replace(start, num_games=self.learning.games, train=self.sft.train, remat=self.sft.remat)

    @property
    def methods(self) -> list[str]:
        """What plays, in the order of the page."""
        return ["actor-critic", *(["LLM-PPO"] if self.ppo else []), *self.models.labels]


PRESETS = {
    "nano": {},
    "paper": {
        "model": "Llama-3.1-8B-Instruct", "aggregator": "endpoint", "endpoint_model": "Llama-3.1-70B-Instruct",
        "style": "paper", "format_examples": 0, "iterations": 31, "games": 512, "num_values": 1,
        "max_visits": 0, "average": 1, "max_tokens": 512, "candidate_temperature": 0.7, "value_temperature": 0.0,
        "epochs": 2, "learning_rate": 1e-5, "policy_learning_rate": 1e-5,
        "batch_size": 64, "row_tokens": 1024,
        "packed": False, "dtype": "bfloat16", "eval_games": 512,
    },
}  # fmt: skip


COMMAND = app.Command(
    SCRIPT, ActorCriticRunConfig, PRESETS, "scale", dry_run="print the run's calls and tokens, then stop", several=True,
    may_change=("iterations", "learning_rate", "policy_learning_rate", "prompted", "micro_batch", "remat", "mesh"),
)  # fmt: skip


def trainer_of(
    config: ActorCriticRunConfig, opponent: str, run_dir: pathlib.Path, usage: Usage, large: LanguageModel
) -> ActorCriticTrainer:
    """The actor-critic against one opponent, with its models. Its page and checkpoints are in `run_dir`."""
    sft = dataclasses.replace(config.sft, seed=config.seed)
    policy_sft = dataclasses.replace(sft, learning_rate=config.policy_learning_rate)
    learn = learner(sft)
    fixed = setup(config, opponent, large, learner(policy_sft), learn)
    base = config.models.learner.load(sft.train, sft.seed)
    examples = format_pairs(fixed, config.format_examples, sft.seed)
    return ActorCriticTrainer(
        fixed, opponent, base, sft.train, learn, *examples, config.average, config.eval_games, sft.seed, run_dir, usage,
        _grid,
    )  # fmt: skip


def format_pairs(fixed: ActorCriticSetup, number: int, seed: int) -> tuple[Pairs, Pairs]:
    """Random replies that teach the formats: (of the policy, of the value model)."""
    views, rng = random_views(fixed.game, number, seed), random.Random(seed)
    policy = [(fixed.roles.policy(view), scripts.random_policy({"view": view}, rng)) for view in views]
    moves = [rng.choice(view.legal) for view in views]
    value = [
        (fixed.roles.value(view, move), scripts.random_value({"view": view, "action": move}, rng))
        for view, move in zip(views, moves, strict=True)
    ]
    return policy, value


def setup(
    config: ActorCriticRunConfig, opponent: str, large: LanguageModel, *learners: Learn, model: str = ""
) -> ActorCriticSetup:
    """The part of the algorithm that does not learn.

    Args:
      learners: of policy and value model; none for an evaluation.
      model: the one that is prompted, if not the config's.
    """
    game, roles = board_game(), prompts.roles(players.prompt_for(model or config.models.learner.model, config.style))
    learners = learners or (None, None)
    return ActorCriticSetup(game, OPPONENTS[opponent](game), roles, large, large, *learners, config.algorithm)


def _grid(board: str) -> str:
    """The drawn board as rows of marks, a dot for a free square."""
    cells = ["." if cell.isdigit() else cell for cell in prompts.squares(board)]
    return "\n".join(" ".join(cells[i : i + 3]) for i in (0, 3, 6))


def play_prompted(fixed: ActorCriticSetup, model: LanguageModel, games: int, seed: int) -> dict[str, float]:
    """Greedy play of a model that does not learn, with the paper's prompt; see `ActorCriticTrainer.evaluate`."""
    greedy = Sampling(fixed.config.aggregation.max_tokens, 0.0)
    return nlac.evaluate(ActorCriticState(model, model), fixed, Viewer(fixed.game), games, greedy, seed + 1)[0]


def validate(config: ActorCriticRunConfig, ask: bool) -> None:
    """Refuses models that cannot do what the config asks, before anything is made; see `Models.validate`."""
    game, rng = board_game(), random.Random(0)
    view = Viewer(game).views(jax.tree.map(lambda leaf: leaf[None], game.init()))[0]

    def roles_of(model: str) -> ActorCriticRoles:
        return prompts.roles(players.prompt_for(model, config.style))

    context, roles = {"view": view, "action": "5"}, roles_of(config.models.learner.model)
    policy = roles.policy(view), scripts.random_policy(context, rng)
    value = roles.value(view, "5"), scripts.random_value(context, rng)
    tokens = config.learning.rollout.max_tokens, config.learning.aggregation.max_tokens

    def prompt_of(model: str) -> Chat:
        return roles_of(model).policy(view)

    config.models.validate([policy, value], config.sft.max_length, *tokens, prompt_of, ask)


def dry_run(config: ActorCriticRunConfig, opponents: tuple[str, ...]) -> str:
    """Calls and tokens, counted in an iteration and its evaluation with rules in the models' place."""
    learners = {"policy": scripts.random_policy, "candidates": scripts.random_policy, "value": scripts.random_value}
    used, plan = config.models, CallPlan(scripts.scripts(config.words) | learners)
    repeats = config.iterations * len(opponents)
    model, large = plan.model(repeats, is_paid=False), plan.model(repeats, is_paid=used.is_paid)

    def learn(model: LanguageModel, pairs: Pairs) -> tuple[LanguageModel, dict[str, float]]:
        return model, {}

    fixed, tokens = setup(config, "random", large, learn, learn), config.learning.rollout.max_tokens
    viewer, second = Viewer(fixed.game), ActorCriticState(model, model, (), 1)  # the first iteration plays at random
    nlac.iterate(second, fixed, viewer, config.seed)
    nlac.evaluate(second, fixed, viewer, config.eval_games, Sampling(tokens, 0.0), config.seed)
    for name in used.labels.values():
        is_paid, once = name == "endpoint", {"policy": len(opponents)}
        prompted = plan.model(0, "{} (as prompted)", is_paid=is_paid, once=once)
        play_prompted(setup(config, "random", prompted, model=name), prompted, config.eval_games, config.seed)
    return (
        f"{used.learner.model}; aggregator and improver: {used.aggregator} {used.endpoint.endpoint_model}. Nothing is "
        f"sent. Rules replied in one iteration against the random opponent; here are {config.iterations} iterations "
        f"against {len(opponents)} opponents. Replies, also those quoted in prompts, are counted at their maximum "
        f"length.\n{plan.table(used.endpoint.token_budget, 'iterations', config.iterations)}"
    )


def main(argv: list[str]) -> None:
    del argv
    config = COMMAND.parse()
    endpoints.check_endpoint_is_used(config.models.aggregator, config.models.prompted)
    if config.models.aggregator != "scripted":
        leave_out(f"with --aggregator {config.models.aggregator}", "words")
    opponents = tuple(OPPONENTS) if config.opponent == "both" else (config.opponent,)
    if flags.FLAGS.dry_run:
        print(dry_run(config, opponents))
        return
    validate(config, ask=not flags.FLAGS.resume)
    matches = list(itertools.product(opponents, config.methods))
    if flags.FLAGS.resume:
        for opponent, method in matches:
            check_done(pathlib.Path(os.path.expanduser(flags.FLAGS.run_dir)) / opponent / method, config.iterations)
    # without a paid model, only a prompted player needs an endpoint
    run_dir, resume = COMMAND.open(config, may_change=() if config.models.is_paid else ("endpoint_model",))
    usage, finished = models.ledger(run_dir), {}

    def large(name: str) -> LanguageModel:
        return config.models.large(name, scripts.scripts(config.words), run_dir, usage)

    def run(method: str, opponent: str, folder: pathlib.Path) -> None:
        """Plays a match in its folder, which holds results.json afterwards."""
        if method == "actor-critic":
            trainer = trainer_of(config, opponent, folder, usage, large(config.models.aggregator))
            actor_critic.train(trainer, SCRIPT, config.iterations, resume)
        elif method == "LLM-PPO":
            trainer = trainer_of(config, opponent, folder, Usage(), ScriptedModel({}))
            base = trainer.base
            model = base.with_variables({**base.variables, trainer.train: trainer.init().policy})
            template = prompts.policy_template(config.models.learner.prompt_for(config.style))
            game = envs.make("tic_tac_toe", opponent=opponent)
            policy = MovePolicy.for_game(game, model.model, model.tokenizer, *template)
            training = config.ppo_learning, config.eval_games, config.seed, config.iterations
            language_ppo.train(folder, model, policy, game, *training, resume)
        else:
            name = config.models.labels[method]
            model = large(name)
            after = play_prompted(setup(config, opponent, model, model=name), model, config.eval_games, config.seed)
            results.write(folder, script=SCRIPT, before={}, after=after)

    try:
        for opponent, method in matches:
            folder = run_dir / opponent / method
            if not (resume and results.is_finished(folder, config.iterations)):
                print(f"{method} against {opponent}", flush=True)
                folder.mkdir(parents=True, exist_ok=True)
                run(method, opponent, folder)
            finished[opponent, method] = results.read(folder)
    except SystemExit:  # Ctrl-C still writes the report of what is finished
        if (folder / results.RESULTS).is_file() and (stored := results.read(folder))["after"]:
            finished[opponent, method] = stored
        if finished:
            show(run_dir, flat(config), finished, usage)
        raise
    show(run_dir, flat(config), finished, usage)


def show(run_dir: pathlib.Path, config: dict[str, Any], finished: dict, usage: Usage) -> None:
    """Writes the page of what is finished, {(opponent, method): results.json's content}, and prints the last lines."""
    opponents = dict.fromkeys(opponent for opponent, _ in finished)
    samples = [
        exchange for opponent in opponents for exchange in exchanges.first_and_last(run_dir / opponent / "actor-critic")
    ]
    report = actor_critic_report.write(run_dir, config, finished, samples, usage)
    print(f"\nreport: {report}")
    for (opponent, method), result in sorted(finished.items(), key=lambda item: item[0][1] != "LLM-PPO"):
        before, after = result["before"], result["after"]
        if not before:
            print(f"{method}, win rate ({opponent}): {after['win']:.3f} ({after['random_moves']:.0%} random moves)")
            continue
        whose = "" if method == "actor-critic" else f"{method}'s "
        print(f"{whose}win rate ({opponent}): {before['win']:.3f} -> {after['win']:.3f}")


if __name__ == "__main__":
    COMMAND.run(main)
