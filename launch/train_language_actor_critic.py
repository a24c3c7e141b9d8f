"""Trains a language policy and a language value function on tic-tac-toe by the natural-language actor-critic.

    python -m launch.train_language_actor_critic --run_dir runs/actor_critic
    python -m launch.train_language_actor_critic --scale paper --dry_run

NLRL, algorithm 3, section 5.3. At nano scale the built-in model is policy and value model, and rules aggregate and
improve (`envs/tic_tac_toe/rule_based.py`); `--aggregator endpoint` prompts a server instead. For each opponent the
LLM-PPO baseline plays as many games from the same prompt (`--ppo`), and other models can play as prompted
(`--prompted smollm2,endpoint`), all in one plot. The last lines read `win rate (OPPONENT): <before> -> <after>`.

Departures from the paper: see `nlrl_jax/algorithms/language_actor_critic.py` and `language_ppo.py`. At nano scale the
learning rate of SFT is larger and its batches smaller, as the model has a thousandth of the paper's weights; moves are
proposed at a higher temperature, each is evaluated several times, a position's count in the data is limited, and the
judged policy is the mean of the last iterations' weights. docs/lab/measurements_nlrl.md gives the reason for each.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import random
from typing import Any

import jax
from absl import flags

from envs.tic_tac_toe import prompts
from envs.tic_tac_toe import rule_based as scripts
from envs.tic_tac_toe.rules import board_game
from launch import train_language_ppo
from nlrl_jax.algorithms import language_actor_critic as nlac
from nlrl_jax.algorithms.language_actor_critic import ActorCriticConfig, ActorCriticSetup, State
from nlrl_jax.algorithms.language_ppo import LanguagePPOConfig
from nlrl_jax.algorithms.sft import SFTConfig
from nlrl_jax.backends.scripted import CountingModel, ScriptedModel
from nlrl_jax.backends.usage import Metered, Usage, describe_usage
from nlrl_jax.config import DTYPES, check, flat, option, part, seed_option
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.roles.board_games import Viewer
from nlrl_jax.rollouts import board_games
from nlrl_jax.rollouts.board_games import random_views
from nlrl_jax.run import actor_critic, app, cost, models, players, records, results
from nlrl_jax.run.actor_critic import Trainer
from nlrl_jax.run.directory import check_done
from nlrl_jax.run.flags import leave_out
from nlrl_jax.run.reports import actor_critic as actor_critic_report
from nlrl_jax.types import LanguageModel, Learn, Sampling

SCRIPT = "train_language_actor_critic"
OPPONENTS = {"first_move": board_games.first_move_opponent, "random": board_games.random_opponent}
_PPO_OPTIONS = {
    "actor_learning_rate": "ppo_learning_rate", "critic_learning_rate": "ppo_critic_learning_rate",
    "epochs": "ppo_epochs",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run computes. Defaults: nano scale; `--scale paper` has the paper's."""

    model: str = option(
        "nano_board", "policy and value model: nano_board, smollm2, a Hugging Face folder or a .gguf file"
    )
    aggregator: str = option("scripted", "aggregator and improver: scripted, endpoint, or a local model's name")
    words: str = option(
        "threats", "what the rules write beside a number: threats, deciding, counts or number; see "
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
        )
    )  # fmt: skip
    average: int = option(
        3, "the judged policy is the mean of the last so many iterations' weights; the paper: 1", least=1
    )
    format_examples: int = option(0, "random replies that teach the reply format; nano_board knows it", least=0)
    sft: SFTConfig = part(
        SFTConfig(learning_rate=1e-3, epochs=4, batch_size=4, max_length=256, packed=True),
        names={"max_length": "row_tokens"},
        without=("schedule", "warmup", "weight_decay", "clip_norm", "b2", "seed"),
    )
    policy_learning_rate: float = option(2e-4, "policy SFT learning rate; too high a rate ends exploration", above=0)
    dtype: str = option("", "float32 or bfloat16; empty keeps the checkpoint's", choices=DTYPES)
    mesh: str = option("", players.MESH)
    eval_games: int = option(1000, "greedy games per evaluation, half of them from either side", least=1)
    ppo: bool = option(True, "train the LLM-PPO baseline on as many games")
    ppo_learning: LanguagePPOConfig = part(
        LanguagePPOConfig(actor_learning_rate=3e-4, critic_learning_rate=1e-3),
        names=_PPO_OPTIONS,
        without={field.name for field in dataclasses.fields(LanguagePPOConfig)} - set(_PPO_OPTIONS),
    )
    ppo_iterations: int = option(
        0, "LLM-PPO's iterations of as many games, for a comparison at equal time; 0: as many as the actor-critic's",
        least=0,
    )  # fmt: skip
    ppo_threats: bool = option(False, "LLM-PPO's prompt names the squares that would complete a row")
    prompted: str = option("", "models that play as prompted, separated by commas, such as smollm2 or endpoint")
    seed: int = seed_option("everything random follows from it", counted_up=True)
    checkpoint_every: int = option(1, "iterations between checkpoints", least=1)
    endpoint: models.EndpointOptions = part(models.EndpointOptions())
    endpoint_model: str = option("", "the endpoint's name for its model")
    templates: TemplateOptions = part(TemplateOptions(shared=True))

    def __post_init__(self):
        check(self)
        models.labels(self.prompted, self.endpoint_model)
        if self.sft.train == "lora" and self.average > 1:
            raise ValueError(
                f"--average is {self.average}, but the mean of adapters is not the mean of the weights they stand for; "
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
    def prompted_models(self) -> dict[str, str]:
        """Label of a model of `--prompted` in the plot -> its name."""
        return models.labels(self.prompted, self.endpoint_model)

    def ppo_run(self, opponent: str) -> train_language_ppo.RunConfig:
        """LLM-PPO on as many games."""
        learning = dataclasses.replace(
            self.ppo_learning, num_games=self.learning.games, train=self.sft.train, remat=self.sft.remat
        )
        names = ("model", "templates", "style", "dtype", "mesh", "eval_games", "seed", "checkpoint_every")
        same = {name: getattr(self, name) for name in names}
        iterations = self.ppo_iterations or self.iterations
        return train_language_ppo.RunConfig(
            opponent=opponent, learning=learning, iterations=iterations, threats=self.ppo_threats, **same
        )


PRESETS = {
    "nano": {},
    "paper": {
        "model": "Llama-3.1-8B-Instruct", "aggregator": "endpoint", "endpoint_model": "Llama-3.1-70B-Instruct",
        "style": "paper", "format_examples": 0, "iterations": 31, "games": 512, "num_values": 1,
        "max_visits": 0, "average": 1, "max_tokens": 512, "candidate_temperature": 0.7, "value_temperature": 0.0,
        "epochs": 2, "learning_rate": 1e-5, "policy_learning_rate": 1e-5,
        "batch_size": 64, "row_tokens": 1024,
        "packed": False, "dtype": "bfloat16", "eval_games": 512,
        "ppo_learning_rate": 1e-5, "ppo_critic_learning_rate": 1e-5,
    },
}  # fmt: skip


def trainer_of(config: RunConfig, opponent: str, run_dir: pathlib.Path, usage: Usage, large: LanguageModel) -> Trainer:
    """The actor-critic against one opponent, with its models."""
    sft = dataclasses.replace(config.sft, seed=config.seed)
    learn = models.learner(sft)
    learn_policy = models.learner(dataclasses.replace(sft, learning_rate=config.policy_learning_rate))
    fixed = setup(config, opponent, large, learn_policy, learn)
    views, rng = random_views(fixed.game, config.format_examples, config.seed), random.Random(config.seed)
    policy = [(fixed.roles.policy(view), scripts.random_policy({"view": view}, rng)) for view in views]
    moves = [rng.choice(view.legal) for view in views]
    value = [
        (fixed.roles.value(view, move), scripts.random_value({"view": view, "action": move}, rng))
        for view, move in zip(views, moves, strict=True)
    ]
    mesh = players.parse_mesh(config.mesh)
    base = models.trainable_model(config.model, config.dtype, config.sft.train, config.seed, mesh, config.templates)
    return Trainer(
        fixed, opponent, base, config.sft.train, learn, policy, value, config.average, config.eval_games, config.seed,
        run_dir, usage, _grid,
    )  # fmt: skip


def setup(
    config: RunConfig, opponent: str, large: LanguageModel, *learners: Learn, model: str = ""
) -> ActorCriticSetup:
    """The fixed side of the algorithm.

    Args:
      learners: of policy and value model; none for an evaluation.
      model: the one that is prompted, if not the config's.
    """
    game, roles = board_game(), prompts.roles(players.prompt_for(model or config.model, config.style))
    learners = learners or (None, None)
    return ActorCriticSetup(game, OPPONENTS[opponent](game), roles, large, large, *learners, config.algorithm)


def _grid(board: str) -> str:
    """The drawn board as rows of marks, a dot for a free square."""
    cells = ["." if cell.isdigit() else cell for cell in prompts.squares(board)]
    return "\n".join(" ".join(cells[i : i + 3]) for i in (0, 3, 6))


def train_actor_critic(
    config: RunConfig,
    opponent: str,
    run_dir: pathlib.Path,
    resume: bool,
    usage: Usage,
    paid: pathlib.Path | None = None,
) -> dict[str, Any]:
    """Trains in a folder. Returns results.json's content: see `Trainer.evaluate`.

    Args:
      paid: where an endpoint's replies are cached; the run's folder by default.
    """
    large = large_model(config, config.aggregator, paid or run_dir, usage)
    trainer = trainer_of(config, opponent, run_dir, usage, large)
    return actor_critic.train(trainer, SCRIPT, config.iterations, config.checkpoint_every, resume)


def large_model(config: RunConfig, name: str, run_dir: pathlib.Path, usage: Usage) -> Metered:
    """The aggregator and improver, or a model that plays as prompted."""
    mesh, rules = players.parse_mesh(config.mesh), scripts.scripts(config.words)
    address, given = (config.endpoint, config.endpoint_model), {"mesh": mesh, "templates": config.templates}
    return models.large_model(name, rules, run_dir, usage, *address, **given)


def play_prompted(config: RunConfig, name: str, opponent: str, model: LanguageModel) -> dict[str, float]:
    """Greedy play of a model that does not learn, with the paper's prompt. Returns what `Trainer.evaluate` does."""
    fixed = setup(config, opponent, model, model=name)
    greedy = Sampling(config.learning.aggregation.max_tokens, 0.0)
    games, seed = config.eval_games, config.seed + 1
    return nlac.evaluate(State(model, model), fixed, Viewer(fixed.game), games, greedy, seed)[0]


def run_method(
    config: RunConfig, opponent: str, method: str, run_dir: pathlib.Path, resume: bool, usage: Usage
) -> dict[str, Any]:
    """A method against an opponent, from disk where it is finished. Returns results.json's content."""
    folder, trained = run_dir / opponent / method, method in ("actor-critic", "LLM-PPO")
    wanted = (config.ppo_iterations if method == "LLM-PPO" else 0) or config.iterations
    if resume and (folder / results.RESULTS).exists():
        earlier = results.read(folder)
        if not trained or earlier["iterations"] >= wanted:  # more is refused before; see `main`
            return earlier
    what = f"{wanted} iterations of {config.learning.games}" if trained else f"{config.eval_games}"
    print(f"{method} against {opponent}: {what} games", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    if method == "actor-critic":
        return train_actor_critic(config, opponent, folder, resume, usage, run_dir)
    if method == "LLM-PPO":
        trainer = trainer_of(config, opponent, folder, Usage(), ScriptedModel({}))
        start = trainer.models(trainer.init()).policy.model
        return train_language_ppo.train(config.ppo_run(opponent), start, folder, resume)
    name = config.prompted_models[method]
    shares = play_prompted(config, name, opponent, large_model(config, name, run_dir, usage))
    results.write(folder, script=SCRIPT, before={}, after=shares)
    return results.read(folder)


def validate(config: RunConfig, ask: bool) -> None:
    """Refuses models that cannot do what the config asks, before anything is made; see `models.check_rows`."""
    game, rng, large = board_game(), random.Random(0), config.learning.aggregation.max_tokens
    view = Viewer(game).views(jax.tree.map(lambda leaf: leaf[None], game.init()))[0]
    context, roles = {"view": view, "action": "5"}, prompts.roles(players.prompt_for(config.model, config.style))
    policy = roles.policy(view), scripts.random_policy(context, rng)
    value = roles.value(view, "5"), scripts.random_value(context, rng)
    rows = config.sft.max_length, config.learning.rollout.max_tokens
    models.check_rows(config.model, [policy, value], *rows, large * (config.aggregator != "scripted"), config.templates)
    given = {"ask": ask, "templates": config.templates}
    models.check_templates(config.templates, config.model, config.aggregator, *config.prompted_models.values())
    models.check_large_model(config.aggregator, config.endpoint, config.endpoint_model, large, **given)
    for name in config.prompted_models.values():
        prompt = prompts.roles(players.prompt_for(name, config.style)).policy(view)
        models.check_large_model(name, config.endpoint, config.endpoint_model, large, [prompt], **given)


def dry_run(config: RunConfig, opponents: tuple[str, ...]) -> str:
    """Calls and tokens, counted in an iteration and its evaluation with rules in the models' place."""
    own = {"policy": scripts.random_policy, "candidates": scripts.random_policy, "value": scripts.random_value}
    rules, usages = CountingModel(scripts.scripts(config.words) | own), (Usage(), Usage(), Usage())
    model, large, prompted = (Metered(rules, usage) for usage in usages)
    learn = lambda model, pairs: (model, {})
    fixed, tokens = setup(config, "random", large, learn, learn), config.learning.rollout.max_tokens
    viewer, second = Viewer(fixed.game), State(model, model, (), 1)  # the first iteration plays at random
    nlac.iterate(second, fixed, viewer, config.seed)
    nlac.evaluate(second, fixed, viewer, config.eval_games, Sampling(tokens, 0.0), config.seed)
    for name in config.prompted_models.values():
        play_prompted(config, name, "random", prompted)
    lines = [
        f"{config.model}; aggregator and improver: {config.aggregator} {config.endpoint_model}. Nothing is sent. Rules "
        f"replied in one iteration against the random opponent; here are {config.iterations} iterations against "
        f"{len(opponents)} opponents. Replies, also those quoted in prompts, are counted at their maximum length.",
        cost.calls_table(usages[0].rows() + usages[1].rows(), config.iterations * len(opponents)),
    ]
    if config.prompted_models:
        lines += [f"As prompted, {config.prompted}:", cost.calls_table(usages[2].rows(), len(opponents))]
    if config.aggregator != "endpoint":
        return "\n".join(lines)
    is_prompted = "endpoint" in config.prompted_models.values()
    paid = (cost.tokens_of(usages[2].rows()) * is_prompted, cost.tokens_of(usages[1].rows()))
    fixed, each = (tokens * len(opponents) for tokens in paid)
    return "\n".join(lines) + cost.within_budget(
        config.endpoint.token_budget, "iterations", config.iterations, fixed, each
    )


def main(argv: list[str]) -> None:
    del argv
    config = app.parse(RunConfig, PRESETS, "scale", script=SCRIPT)
    models.check_endpoint_is_used(config.aggregator, config.prompted)
    if config.aggregator != "scripted":
        leave_out(f"with --aggregator {config.aggregator}", "words")
    if not config.ppo:
        leave_out("with --noppo", *_PPO_OPTIONS.values(), "ppo_iterations", "ppo_threats")
    opponents = tuple(OPPONENTS) if config.opponent == "both" else (config.opponent,)
    if flags.FLAGS.dry_run:
        print(dry_run(config, opponents))
        return
    validate(config, ask=not flags.FLAGS.resume)
    may_change = ("iterations", "ppo_iterations", "prompted", "checkpoint_every", "micro_batch", "remat", "mesh")
    if config.aggregator != "endpoint":  # then only a prompted player needs one
        may_change += ("endpoint_model",)
    methods = ["actor-critic", *(["LLM-PPO"] if config.ppo else []), *config.prompted_models]
    if flags.FLAGS.resume:
        for opponent, method in itertools.product(opponents, methods):
            wanted = (config.ppo_iterations if method == "LLM-PPO" else 0) or config.iterations
            check_done(pathlib.Path(flags.FLAGS.run_dir).expanduser() / opponent / method, wanted)
    run_dir = app.take_run_dir(SCRIPT, config, may_change)
    usage = models.ledger(run_dir)
    finished = {}
    try:
        for opponent, method in itertools.product(opponents, methods):
            finished[opponent, method] = run_method(config, opponent, method, run_dir, flags.FLAGS.resume, usage)
    except SystemExit:  # Ctrl-C leaves the report of what is done
        if (run_dir / opponent / method / results.RESULTS).is_file():
            finished[opponent, method] = results.read(run_dir / opponent / method)
        if finished:
            show(config, run_dir, tuple(dict.fromkeys(opponent for opponent, _ in finished)), finished, usage)
        raise
    show(config, run_dir, opponents, finished, usage)


def show(config: RunConfig, run_dir: pathlib.Path, opponents, finished: dict, usage: Usage) -> None:
    """Writes the page of what is finished, {(opponent, method): results.json's content}, and prints the last lines."""
    kept = [one for opponent in opponents for one in records.first_and_last(run_dir / opponent / "actor-critic")]
    report = actor_critic_report.write(run_dir, flat(config), finished, kept, describe_usage(usage))
    print(f"\nreport: {report}")
    for (opponent, method), result in sorted(finished.items(), key=lambda item: item[0][1] != "LLM-PPO"):
        before, after = result["before"], result["after"]
        if not before:
            print(f"{method}, win rate ({opponent}): {after['win']:.3f} ({after['random_moves']:.0%} random moves)")
            continue
        whose = "" if method == "actor-critic" else f"{method}'s "
        print(f"{whose}win rate ({opponent}): {before['win']:.3f} -> {after['win']:.3f}")


define_flags = app.flags_of(
    RunConfig, PRESETS, "scale", dry_run="print the run's calls and tokens, and do nothing", several=True
)

if __name__ == "__main__":
    define_flags()
    app.run(main)
