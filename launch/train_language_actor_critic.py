"""Trains a language policy and a language value function on tic-tac-toe by the natural-language actor-critic.

    python -m launch.train_language_actor_critic --run_dir runs/actor_critic
    python -m launch.train_language_actor_critic --scale paper --dry_run

NLRL, algorithm 3, section 5.3. At nano scale the built-in model plays and values, rule-based scripts aggregate and
improve (`envs/tic_tac_toe/rule_based.py`); `--aggregator endpoint` asks a server instead. For each opponent the LLM-PPO
baseline plays as many games from the same prompt (`--ppo`), and other models can be asked to play as they are
(`--prompted smollm2,endpoint`), all in one plot. The last lines read `win rate (OPPONENT): <before> ->
<after>`.

Departures from the paper: see `nlrl_jax/algorithms/language_actor_critic.py` and `language_ppo.py`. At nano scale the
learning rate of SFT is larger and its batches smaller, as the model has a thousandth of the paper's weights; moves are
proposed at a higher temperature, each is evaluated several times, a position counts a few times at most, and the policy
that is judged is the mean of the last iterations' weights. docs/measurements.md says what each was needed for.
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
from absl import flags

from envs.tic_tac_toe import prompts as prompts
from envs.tic_tac_toe import rule_based as scripts
from envs.tic_tac_toe.rules import board_game
from launch import actor_critic_baselines as baselines
from nlrl_jax.algorithms import language_actor_critic as nlac
from nlrl_jax.algorithms.language_actor_critic import ActorCriticConfig, Setting, State
from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.backends.usage import Metered, Usage
from nlrl_jax.config import check_numbers, option
from nlrl_jax.files import write_atomically
from nlrl_jax.roles.board_games import Viewer
from nlrl_jax.rollouts import board_games
from nlrl_jax.rollouts.board_games import random_views
from nlrl_jax.run import app, loop, models, players
from nlrl_jax.run import flags as config_flags
from nlrl_jax.run.reports import actor_critic as actor_critic_report
from nlrl_jax.types import Chat, LanguageModel, Pairs, Sampling

OPPONENTS = {"first_move": board_games.first_move_opponent, "random": board_games.random_opponent}


@dataclasses.dataclass(frozen=True)
class RunConfig(models.EndpointOptions):
    """Everything that decides what a run computes. Defaults: nano scale; `--scale paper` has the paper's.

    Raises:
      ValueError: a field outside its range.
    """

    model: str = option(
        "nano_board", "policy and value model: nano_board, smollm2, a Hugging Face folder or a .gguf file"
    )
    aggregator: str = option("scripted", "who aggregates and improves: scripted, endpoint, or a local model's name")
    opponent: str = option("both", "first_move, random or both")
    style: str = option(
        "auto", "prompts: paper, paper_zero_shot (no examples), compact, or auto: compact for the built-in models"
    )
    iterations: int = option(5, "iterations")
    games: int = option(320, "games an iteration [N]")
    estimate: str = option("mc", "language value estimate: mc or td")
    k: int = option(5, "games, or transitions, that one estimate aggregates [K_MC, K_TD]")
    fresh_lines: bool = option(
        False, "play k new games for every estimate (more than LLM-PPO gets); false: use those of the iteration"
    )
    num_samples: int = option(10, "moves the policy proposes for a position [N_sample]")
    top_m: int = option(10, "most frequent ones that are compared [m]")
    num_values: int = option(8, "evaluations drawn of each move that is compared; the paper: 1")
    mask: bool = option(True, "compare the policy's own proposals only; false: all legal moves")
    max_visits: int = option(4, "how often a position counts at most in the policy's data; 0: no limit (the paper)")
    buffer: int = option(3, "iterations of value data that are learned from [K_buffer]")
    average: int = option(
        3, "the policy that is judged: the mean of the last so many iterations' weights; the paper: 1"
    )
    candidate_temperature: float = option(1.2, "of the moves it proposes; the paper's code: 0.7")
    value_temperature: float = option(0.5, "of the value model's evaluations; the paper's code: 0")
    max_tokens: int = option(32, "tokens a reply of the policy or value model at most")
    large_max_tokens: int = option(1024, "tokens a reply of the aggregator or improver at most")
    format_examples: int = option(0, "replies drawn by lot that teach the form first; nano_board knows it")
    epochs: int = option(4, "passes over the data of an iteration")
    learning_rate: float = option(1e-3, "SFT's learning rate of the value model")
    policy_learning_rate: float = option(2e-4, "SFT's learning rate of the policy: too fast a one stops to explore")
    batch_size: int = option(4, "rows a gradient step")
    row_tokens: int = option(256, "tokens a row; packed: several examples share one")
    packed: bool = option(True, "put several examples into one row")
    train: str = option("params", "what SFT changes: params or lora")
    dtype: str = option("", "float32 or bfloat16; empty keeps the checkpoint's")
    eval_games: int = option(1000, "greedy games of an evaluation, half of them from either side")
    ppo: bool = option(True, "train the LLM-PPO baseline on as many games")
    prompted: str = option("", "comma-separated: models that play as prompted, such as smollm2 or endpoint")
    ppo_learning_rate: float = option(3e-4, "LLM-PPO's learning rate")
    ppo_critic_learning_rate: float = option(1e-3, "LLM-PPO's learning rate of the value head")
    seed: int = option(0, "everything random follows from it")
    checkpoint_every: int = option(1, "iterations between checkpoints")
    endpoint_model: str = option("", "an endpoint's name for its model")

    def __post_init__(self):
        at_least_one = (
            "iterations", "games", "k", "num_samples", "top_m", "num_values", "buffer", "max_tokens",
            "large_max_tokens", "epochs", "batch_size", "row_tokens", "eval_games", "checkpoint_every", "concurrency",
            "average",
        )  # fmt: skip
        not_negative = ("max_visits", "candidate_temperature", "value_temperature", "format_examples", "seed")
        rates = ("learning_rate", "policy_learning_rate", "ppo_learning_rate", "ppo_critic_learning_rate")
        check_numbers(self, at_least_one, (*not_negative, "token_budget"), rates)
        if self.opponent not in ("both", *OPPONENTS):
            raise ValueError(f"--opponent is {self.opponent!r}; choose both or one of {', '.join(OPPONENTS)}")
        if "scripted" in self.prompted.split(","):
            raise ValueError("--prompted names scripted, which cannot play; give endpoint or local models")
        if len(baselines.as_prompted(self)) < len([name for name in self.prompted.split(",") if name]):
            raise ValueError(f"--prompted is {self.prompted!r}; two of these models would have one name in the plot")
        if self.train == "lora" and self.average > 1:
            raise ValueError(
                f"--average is {self.average}, but the mean of adapters is not the mean of the weights they stand for; "
                "with --train lora it must be 1"
            )
        self.algorithm()
        models.learner(self, self.learning_rate)
        prompts.roles(players.prompt_for(self.model, self.style))

    def algorithm(self) -> ActorCriticConfig:
        """What algorithm 3 is told. Raises ValueError for settings that do not go together."""
        sampled = lambda temperature, **kw: Sampling(self.max_tokens, temperature, **kw)
        large = Sampling(self.large_max_tokens, 0.1)
        names = ("games", "estimate", "k", "fresh_lines", "num_samples", "top_m", "num_values", "mask", "max_visits")
        return ActorCriticConfig(
            **{name: getattr(self, name) for name in (*names, "buffer")},
            rollout=sampled(1.0, top_k=50, top_p=0.95),
            candidates=sampled(self.candidate_temperature),
            values=sampled(self.value_temperature),
            aggregation=large,
            improvement=large,
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


@flax.struct.dataclass
class Learned:
    """What a checkpoint holds: the two models' trained collections.

    recent: policies of the iterations before, the latest first; as many as the mean that is judged needs.
    """

    policy: Any
    value: Any
    iteration: jax.Array
    recent: tuple[Any, ...] = ()

    def learned(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("policy", "value", "iteration", "recent")}

    def judged(self) -> Any:
        """The mean of the policies that iterations have made, as far as they are kept; at first the base."""
        made = (self.policy, *self.recent)[: max(int(self.iteration), 1)]
        return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *made)


class Trainer:
    """The actor-critic against one opponent, with its models; what changes is in the state."""

    def __init__(self, config: RunConfig, opponent: str, run_dir: pathlib.Path, usage: Usage, large: LanguageModel):
        learn_value = models.learner(config, config.learning_rate)
        learn_policy = models.learner(config, config.policy_learning_rate)
        roles, game = prompts.roles(players.prompt_for(config.model, config.style)), board_game()
        self.config, self.run_dir, self.usage = config, run_dir, usage
        self.viewer = Viewer(game)
        self.setting = Setting(
            game, OPPONENTS[opponent](game), roles, large, large, learn_policy, learn_value, config.algorithm()
        )
        self.base, self.learn = models.trainable_model(config), learn_value

    def init(self) -> Learned:
        """The base model, as policy and as value model each after the form of its replies was learned."""
        config, roles = self.config, self.setting.roles
        views = random_views(self.setting.game, config.format_examples, config.seed)
        rng = random.Random(config.seed)
        policy = [(roles.policy(view), scripts.random_policy({"view": view}, rng)) for view in views]
        moves = [rng.choice(view.legal) for view in views]
        value = [
            (roles.value(view, move), scripts.random_value({"view": view, "action": move}, rng))
            for view, move in zip(views, moves)
        ]

        def taught(pairs):
            model = self.learn(self.base, pairs)[0] if pairs else self.base
            return models.on_device(model.variables[config.train])

        policy = taught(policy)
        return Learned(policy, taught(value), jnp.zeros((), jnp.int32), (policy,) * (config.average - 1))

    def models(self, state: Learned, buffer: tuple[Pairs, ...] = ()) -> State:
        """The state as algorithm 3 knows it."""
        with_learned = lambda learned: Metered(
            self.base.with_variables({**self.base.variables, self.config.train: learned}), self.usage
        )
        return State(with_learned(state.policy), with_learned(state.value), buffer, int(state.iteration))

    def update(self, state: Learned, key: jax.Array) -> tuple[Learned, dict[str, float]]:
        """One iteration; leaves its value data and what there is to read in the run's folder."""
        i = int(state.iteration)
        buffer = tuple(read_pairs(self.values_file(n)) for n in range(max(0, i - self.config.buffer + 1), i))
        seed = int(jax.random.randint(key, (), 0, 2**30))
        after, record = nlac.iterate(self.models(state, buffer), self.setting, self.viewer, seed)
        write_pairs(self.values_file(i), after.buffer[-1])
        actor_critic_report.write_record(self.run_dir, i, record)
        learned = lambda model: model.model.variables[self.config.train]
        recent = (state.policy, *state.recent)[: self.config.average - 1]
        made = Learned(learned(after.policy), learned(after.value), jnp.asarray(i + 1, jnp.int32), recent)
        return made, record.metrics

    def values_file(self, iteration: int) -> pathlib.Path:
        return self.run_dir / "values" / f"{iteration:05d}.jsonl"

    def evaluate(self, state: Learned) -> dict[str, float]:
        """Greedy play, as the paper judges it, of the mean of the last policies."""
        greedy = Sampling(self.config.max_tokens, 0.0)
        shares, _ = nlac.evaluate(
            self.models(state.replace(policy=state.judged())),
            self.setting,
            self.viewer,
            self.config.eval_games,
            greedy,
            self.config.seed + 1,
        )
        return {f"eval/{name}": share for name, share in shares.items()}


def write_pairs(path: pathlib.Path, pairs: Pairs) -> None:
    """Chats with replies, one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"messages": list(chat.messages), "reply": reply}, ensure_ascii=False) for chat, reply in pairs]
    write_atomically(path, "".join(line + "\n" for line in lines))


def read_pairs(path: pathlib.Path) -> Pairs:
    """What `write_pairs` wrote.

    Raises:
      ValueError: it is not there, or damaged.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # `splitlines` would also cut at U+2028, which JSON allows
        rows = [json.loads(line) for line in lines if line]
        return [(Chat(tuple(row["messages"])), row["reply"]) for row in rows]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{path} is needed to go on and cannot be read ({error}); start again in another --run_dir, and copy the "
            "folder cache there, if this run has one: what was paid for is not asked again"
        ) from error


def train_actor_critic(
    config: RunConfig,
    opponent: str,
    run_dir: pathlib.Path,
    resume: bool,
    usage: Usage,
    paid: pathlib.Path | None = None,
) -> dict:
    """Trains in a folder. Returns {"before", "after": win, tie and loss}.

    Args:
      paid: where an endpoint's account and replies are kept; the run's folder by default.
    """
    large = models.large_model_of(config, scripts.SCRIPTS, paid or run_dir, usage)
    trainer = Trainer(config, opponent, run_dir, usage, large)
    state = trainer.init()
    before = trainer.evaluate(state)
    if resume:
        state = loop.restore(run_dir, state)
    state = loop.train(
        run_dir,
        trainer.update,
        state,
        seed=config.seed,
        iterations=config.iterations,
        checkpoint_every=config.checkpoint_every,
        columns=("eval/win", "rollout/win", "random_moves", "value_sft/loss", "policy_sft/loss"),
        resume=resume,
        evaluate=lambda done, state: trainer.evaluate(state),
    )
    return {"before": before, "after": trainer.evaluate(state)}


def check(config: RunConfig) -> None:
    """Refuses before anything is made what its models cannot do; see `language_models.check_models`."""
    game, rng = board_game(), random.Random(0)
    view = Viewer(game).views(jax.tree.map(lambda leaf: leaf[None], game.init()))[0]
    context, roles = {"view": view, "action": "5"}, prompts.roles(players.prompt_for(config.model, config.style))
    policy = roles.policy(view), scripts.random_policy(context, rng)
    models.check_models(config, [policy, (roles.value(view, "5"), scripts.random_value(context, rng))])
    for name in baselines.as_prompted(config).values():
        asked = prompts.roles(players.prompt_for(name, config.style)).policy(view)
        models.check_large_model(dataclasses.replace(config, aggregator=name), [asked])


def main(argv: list[str]) -> None:
    del argv
    config = app.parse(RunConfig, PRESETS, "scale")
    opponents = tuple(OPPONENTS) if config.opponent == "both" else (config.opponent,)
    if flags.FLAGS.dry_run:
        print(actor_critic_report.plan(config, len(opponents)))
        return
    check(config)
    may_change = ("iterations", "prompted", "checkpoint_every", *models.MAY_CHANGE)
    if config.aggregator != "endpoint":  # then only a prompted player needs one
        may_change += ("base_url", "endpoint_model")
    run_dir = app.take_run_dir("train_language_actor_critic", config, may_change)
    usage, results, resume = Usage(run_dir), {}, flags.FLAGS.resume
    prompted = baselines.as_prompted(config)
    for opponent in opponents:
        for method in ("actor-critic", *(["LLM-PPO"] if config.ppo else []), *prompted):
            folder = run_dir / opponent / method
            done, trained = folder / "results.json", method in ("actor-critic", "LLM-PPO")
            earlier = json.loads(done.read_text()) if resume and done.exists() else None
            if earlier and not (trained and earlier["iterations"] < config.iterations):
                results[opponent, method] = earlier
                continue
            what = f"{config.iterations} iterations of {config.games}" if trained else f"{config.eval_games}"
            print(f"{method} against {opponent}: {what} games", flush=True)
            folder.mkdir(parents=True, exist_ok=True)
            if not trained:
                other = OPPONENTS[opponent](board_game())
                found = baselines.play_prompted(config, prompted[method], other, run_dir, usage)
            elif method == "actor-critic":
                found = train_actor_critic(config, opponent, folder, resume, usage, run_dir)
            else:
                nobody = Trainer(config, opponent, folder, Usage(), ScriptedModel({}))
                start = nobody.models(nobody.init()).policy.model
                found = baselines.train_ppo(config, start, opponent, folder, resume)
            results[opponent, method] = found | {"iterations": config.iterations}
            write_atomically(done, json.dumps(results[opponent, method]))
    report = actor_critic_report.write(run_dir, dataclasses.asdict(config), results, usage)
    print(f"\nreport: {report}")
    for (opponent, method), result in sorted(results.items(), key=lambda item: item[0][1] != "LLM-PPO"):
        before, after = (result[when]["eval/win"] for when in ("before", "after"))
        if method in prompted:
            lot = result["before"]["eval/random_moves"]
            print(f"{method}, win rate ({opponent}): {before:.3f} ({lot:.0%} of its moves were drawn by lot)")
            continue
        whose = "" if method == "actor-critic" else f"{method}'s "
        print(f"{whose}win rate ({opponent}): {before:.3f} -> {after:.3f}")


def define_flags() -> None:
    config_flags.define(RunConfig, PRESETS, "scale")
    flags.DEFINE_boolean("dry_run", False, "print what the run would ask of the models, and stop")
    app.define_run_flags()


if __name__ == "__main__":
    define_flags()
    app.run(main)
