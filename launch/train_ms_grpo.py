r"""Trains a language agent policy on a text game by MS-GRPO.

    python -m launch.train_ms_grpo --preset demo --run_dir runs/demo
    python -m launch.train_ms_grpo --model smollm2 --preset laptop --run_dir runs/smollm2
    python -m launch.train_ms_grpo --model ~/models/Qwen2.5-3B-Instruct --game snake --dtype bfloat16 --micro_batch 5 \
        --remat --run_dir runs/qwen
    python -m launch.train_ms_grpo --game my_module:text_game --run_dir runs/mine
    python -m launch.train_ms_grpo --run_dir runs/demo --resume

Defaults are the paper's hyperparameters. A run leaves metrics.jsonl, TensorBoard events, checkpoints, results.json,
learning_curve.png, report.html and a PEFT adapter in its folder; a killed run continues with --resume.

Departure from the paper: FrozenLake trains on seven eighths of the maps and is evaluated on the others, which the model
has never seen; `--maps all` draws both from all maps, as the paper does.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from absl import flags

import envs
from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig, init_state, make_update
from nlrl_jax.config import DTYPES, check, flat, option, part, seed_option
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.lm.sharding import whole, whole_rows
from nlrl_jax.run import app, loop, players, processes, results
from nlrl_jax.run.flags import leave_out
from nlrl_jax.run.plots import learning_curve
from nlrl_jax.run.report import Episodes, Picture, changes, write_report
from nlrl_jax.run.reports import replies
from nlrl_jax.run.transcript import transcripts
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.types import Sampling, TextGame
from nlrl_jax.updates import keep_finite, over_seeds, seed_mesh, spread, stack
from nlrl_jax.weights import peft

SCRIPT = "train_ms_grpo"
SHOWN = 6  # episodes in the report


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what a run computes."""

    game: str = option("frozen_lake", f"{', '.join(envs.GAMES)}, or your own as my_module:text_game")
    maps: str = option(
        "", "FrozenLake's maps: all (the paper's), held_out, or train and evaluation on held_out; empty: train",
        choices=("", "all", "train", "held_out"),
    )  # fmt: skip
    model: str = option("nano", players.MODELS)
    revision: str = option("", "branch, tag or commit of a Hub id")
    templates: TemplateOptions = part(TemplateOptions())
    prompt: str = option("auto", "paper, compact, or auto: compact for nano, else paper")
    iterations: int = option(700, "iterations of Algorithm 1", least=1)
    learning: MSGRPOConfig = part(MSGRPOConfig())
    sampling: Sampling = part(Sampling(max_tokens=200, temperature=1.5, top_k=3))
    lora: LoraConfig = part(LoraConfig(), names={"rank": "lora_rank", "alpha": "lora_alpha"})
    dtype: str = option("", "float32 or bfloat16; empty keeps the checkpoint's", choices=DTYPES)
    mesh: str = option("", players.MESH)
    seed: int = seed_option("everything random follows from it")
    eval_episodes: int = option(50, "greedy episodes from fixed initial states, before and after", least=1)
    eval_turns: int = option(20, "maximum replies, and environment steps, per evaluation episode", least=1)
    eval_every: int = option(0, "evaluate every so many iterations too; 0: only before and after", least=0)
    checkpoint_every: int = option(25, "iterations between checkpoints", least=1)

    def __post_init__(self):
        check(self)
        if not self.learning.learning_rate:
            raise ValueError("--learning_rate is 0.0, with which nothing is learned; it must be above 0")
        if not self.sampling.temperature or self.sampling.top_k == 1:
            raise ValueError(
                f"--temperature {self.sampling.temperature} and --top_k {self.sampling.top_k} write the same reply in "
                "all episodes of a group, from which nothing is learned; give a temperature above 0 and another top_k"
            )
        if self.maps and self.game not in envs.WITH_MAPS:
            raise ValueError(f"--maps does nothing for {self.game}, only for {', '.join(envs.WITH_MAPS)}; leave it out")

    @property
    def map_splits(self) -> tuple[str, str]:
        """The maps that are trained and evaluated on."""
        return {"": ("train", "held_out"), "train": ("train", "held_out")}.get(self.maps, (self.maps, self.maps))


PRESETS = {
    "paper": {},
    "demo": {
        "iterations": 300, "group_size": 10, "group_sample": 5, "num_groups": 10, "sampling_temperature": 1.0,
        "temperature": 1.0, "top_k": 0, "max_tokens": 10, "learning_rate": 6e-4, "decay_steps": 330, "lora_rank": 16,
        "lora_alpha": 16.0, "micro_batch": 64, "probe": 32, "eval_episodes": 500, "eval_every": 50,
    },
    "laptop": {
        "iterations": 20, "group_size": 8, "group_sample": 4, "max_turns": 3, "max_tokens": 80,
        "micro_batch": 4, "probe": 8, "eval_episodes": 4, "eval_turns": 4, "checkpoint_every": 5,
    },
    "evening": {
        "prompt": "compact", "iterations": 50, "group_size": 8, "group_sample": 4, "num_groups": 8, "max_turns": 3,
        "sampling_temperature": 1.0, "temperature": 1.0, "top_k": 0, "max_tokens": 14, "beta": 0.0,
        "learning_rate": 1e-4, "decay_steps": 125, "micro_batch": 16, "probe": 8, "eval_episodes": 200,
        "eval_turns": 10, "eval_every": 25, "checkpoint_every": 5,
    },
}  # fmt: skip


# What may differ when a run is resumed: how long or how fast it is and what is watched, not what it learns.
MAY_CHANGE = ("iterations", "checkpoint_every", "micro_batch", "remat", "mesh", "probe")


def games_of(config: TrainConfig) -> tuple[TextGame, TextGame]:
    """The game to train on and the one to evaluate on."""
    prompt = players.prompt_for(config.model, config.prompt)
    if config.game not in envs.WITH_MAPS:
        return (envs.make(config.game, prompt),) * 2
    learned, evaluated = (envs.make(config.game, prompt, maps=maps) for maps in config.map_splits)
    return learned, evaluated


def build(config: TrainConfig) -> tuple[TextGame, TextGame, LanguageAgentPolicy, Any]:
    """Game, evaluation game, policy and base weights of a config. Bad settings raise ValueError here."""
    mesh = players.parse_mesh(config.mesh)
    game, evaluated = games_of(config)
    loaded = players.load(config.model, config.dtype, config.lora, mesh, config.revision, config.templates)
    prompt = players.prompt_for(config.model, config.prompt)
    policy = players.make_policy(game, loaded, config.sampling, prompt, mesh)
    return game, evaluated, policy, loaded.params


def fresh_state(config: TrainConfig, policy: LanguageAgentPolicy, params: Any, seed: int):
    """A seed's state before its first iteration."""
    return init_state(policy.model, params, config.learning, jax.random.fold_in(jax.random.key(seed), 0))


def main(argv: list[str]) -> None:
    del argv
    config = app.parse(TrainConfig, PRESETS, script=SCRIPT)
    if not config.learning.beta:
        leave_out("with --beta 0", "kl_estimator")
    if not config.learning.sampling_temperature:
        leave_out("with --sampling_temperature 0, which learns from all episodes", "group_sample")
    game, evaluated, policy, params = build(config)
    size = config.learning.micro_batch
    if size != (rows := whole_rows(size, policy.model.mesh)):
        print(f"micro_batch {size} becomes {rows}: equally many replies on each of the devices that share a batch")
    # The one XLA program: random key in, new parameters out.
    update = jax.jit(make_update(policy, game, config.learning), donate_argnums=0)
    run_dir = app.take_run_dir(SCRIPT, config, MAY_CHANGE)
    state = fresh_state(config, policy, params, config.seed)
    if flags.FLAGS.resume:
        state = loop.restore(run_dir, state)

    turns = config.eval_turns
    evaluate = players.evaluator(policy, evaluated, config.eval_episodes, turns, turns, seed=2**31 - 1)
    summarize = lambda episodes: players.summarize(episodes, evaluated, config.learning.invalid_action_reward)
    variables = lambda state: {"params": state.params, "lora": state.lora}
    selected = range(min(SHOWN, config.eval_episodes))
    read = lambda episodes: transcripts(policy.for_evaluation(), evaluated, episodes, selected)

    if flags.FLAGS.resume and (run_dir / results.RESULTS).exists():  # a resumed run does not evaluate the start again
        before = results.read(run_dir)
    else:
        print("compiling the evaluation and playing before training ...", flush=True)
        episodes = jax.device_get(evaluate({"params": state.params}))
        before = {"before": summarize(episodes), "transcripts": {"before": read(episodes)}}
        results.write(run_dir, script=SCRIPT, after={}, **before)
    print("before training: " + ", ".join(f"{name} {x:.3g}" for name, x in before["before"].items()), flush=True)

    def evaluate_now_and_then(done, state):
        if not config.eval_every or done % config.eval_every:
            return {}
        return {f"eval/{name}": value for name, value in summarize(evaluate(variables(state))).items()}

    def finish(state):
        episodes = jax.device_get(evaluate(variables(state)))
        episodes_shown = {"before": before["transcripts"]["before"], "after": read(episodes)}
        after, lora = summarize(episodes), whole(state.lora)
        results.write(run_dir, script=SCRIPT, before=before["before"], after=after, transcripts=episodes_shown)
        if processes.first():
            done = dataclasses.replace(config, iterations=int(state.iteration))
            write_page(run_dir, done, game, policy, lora, before["before"], after, episodes_shown)

    loop.train(
        run_dir,
        update,
        state,
        seed=config.seed,
        iterations=config.iterations,
        checkpoint_every=config.checkpoint_every,
        columns=("return", "success" if game.success else "env_return", "kl", "reply_tokens"),
        resume=flags.FLAGS.resume,
        evaluate=evaluate_now_and_then,
        finish=finish,
    )


def write_page(run_dir: pathlib.Path, config: TrainConfig, game: TextGame, policy, lora, before, after, episodes):
    """The adapter, the curve and the page of `config.iterations` done; prints where they are and what came out."""
    peft.save(run_dir / "adapter", policy.model.config, lora, base_model=config.model)
    name, label = ("success", "greedy success") if "success" in after else ("env_return", "greedy return")
    headline = f"{label}: {before[name]:.3f} -> {after[name]:.3f}"
    curves = ["return", "success", "eval/success"] if name == "success" else ["return", "env_return"]
    start = {f"eval/{metric}": value for metric, value in before.items()}
    curves += ["kl"] * (config.learning.beta > 0)
    curve = learning_curve([run_dir], curves, run_dir / "learning_curve.png", before=start)
    health = learning_curve([run_dir], replies.MEASURES, run_dir / "replies.png")
    alarms = replies.warnings(run_dir)
    report = write_report(
        run_dir,
        title=f"MS-GRPO: {config.model} on {config.game}",
        question=f"Does {config.model} play {config.game} better after {config.iterations} iterations of MS-GRPO?",
        config=flat(config),
        blocks=[
            changes(before, after),
            *(f"Warning: {sentence}" for sentence in alarms),
            Picture(curve, "Each metric by iteration: thin as measured, bold a running mean; points are evaluations."),
            Picture(health, "How the replies change: a measure that falls towards 0 is a warning."),
            Episodes(episodes["before"], episodes["after"]),
        ],
        headline=headline,
        legend=game.legend,
    )
    print("".join(f"warning: {sentence}\n" for sentence in alarms), end="")
    print(f"report: {report}\ncurve:  {curve}\nadapter (PEFT): {run_dir / 'adapter'}\n{headline}")


class Agents:
    """The agents of all seeds, with what is needed to train them and to evaluate them on the games `names`."""

    def __init__(
        self, config: TrainConfig, seeds: int, names: Iterable[str], eval_seed: int, vectorize: bool, apart: bool
    ):
        self.config, self.seeds = config, list(range(seeds))
        game, _, self.policy, params = build(config)
        self.state = stack([fresh_state(config, self.policy, params, seed) for seed in self.seeds])
        mesh = seed_mesh(seeds) if apart else None
        self.place = jax.devices()[0] if apart else None
        self.state = spread(self.state, mesh) if apart else self.state
        update = over_seeds(make_update(self.policy, game, config.learning), vectorize, mesh)
        self.update = jax.jit(keep_finite(update), donate_argnums=0)
        prompt = players.prompt_for(config.model, config.prompt)
        self.games = {name: envs.make(name, prompt) for name in names}
        sampling, model, tokenizer = self.policy.for_evaluation().sampling, self.policy.model, self.policy.tokenizer
        self.policies = {
            name: LanguageAgentPolicy.for_game(g, model, tokenizer, sampling, prompt) for name, g in self.games.items()
        }
        turns = config.eval_turns
        self.players = {
            name: players.evaluator(self.policies[name], g, config.eval_episodes, turns, turns, eval_seed)
            for name, g in self.games.items()
        }

    def rewards(self, variables: Any) -> dict[str, float]:
        """Mean environment reward on every variant."""
        return {
            name: players.summarize(play(variables), self.games[name], self.config.learning.invalid_action_reward)[
                "env_reward"
            ]
            for name, play in self.players.items()
        }

    def variables(self, state, seed: int) -> dict[str, Any]:
        return self.here({"params": state.params, "lora": jax.tree.map(lambda leaf: leaf[seed], state.lora)})

    def here(self, variables: Any) -> dict[str, Any]:
        """Variables on the device where agents are evaluated."""
        return variables if self.place is None else jax.device_put(variables, self.place, may_alias=False)

    def evaluate(self, state) -> dict[str, np.ndarray]:
        """Mean environment reward of every seed on every variant: {NAME: [seeds]}."""
        rewards = [self.rewards(self.variables(state, n)) for n in self.seeds]
        return {name: np.array([one[name] for one in rewards]) for name in self.players}

    def show(self, variables: Any, name: str, rows: range) -> list[dict[str, Any]]:
        return transcripts(self.policies[name], self.games[name], self.players[name](variables), rows)


def train_agents(
    config: TrainConfig,
    seeds: int,
    names: Sequence[str],
    eval_seed: int,
    vectorize: bool,
    run_dir: pathlib.Path,
    resume: bool,
    apart: bool = False,
) -> dict[str, Any]:
    """Agents of one config under several seeds, trained together and evaluated greedily as they learn.

    Finished ones are read from their folder.

    Args:
      names: games to evaluate on, `config.game` among them.
      eval_seed: which initial states.
      apart: spread the seeds over the devices.

    Returns:
      What `results.read` reads: environment reward "before" {game: number} and "after" {game: [seeds]}, "seconds" of
      training, and "transcripts" on `config.game`, those after with the best seed.
    """
    if resume and (run_dir / results.RESULTS).exists():
        return results.read(run_dir)
    agents = Agents(config, seeds, names, eval_seed, vectorize, apart)
    untrained, selected = agents.here({"params": agents.state.params}), range(min(3, config.eval_episodes))
    before, episodes = agents.rewards(untrained), {"before": agents.show(untrained, config.game, selected)}
    state = loop.restore(run_dir, agents.state) if resume else agents.state

    def evaluate(iteration, state):
        now = (config.eval_every and iteration % config.eval_every == 0) or iteration == config.iterations
        return {f"eval/{name}": rewards for name, rewards in agents.evaluate(state).items()} if now else {}

    clock = time.monotonic()
    state = loop.train(
        run_dir,
        agents.update,
        state,
        seed=agents.seeds,
        iterations=config.iterations,
        checkpoint_every=config.checkpoint_every,
        columns=("return", f"eval/{config.game}", "kl", "reply_tokens"),
        resume=resume,
        evaluate=evaluate,
    )
    seconds, after = time.monotonic() - clock, agents.evaluate(state)
    best = agents.variables(state, int(np.argmax(after[config.game])))
    episodes["after"] = agents.show(best, config.game, selected)
    results.write(
        run_dir, script=SCRIPT, before=before, after=after, seeds=agents.seeds, seconds=seconds, transcripts=episodes
    )
    return results.read(run_dir)


define_flags = app.flags_of(TrainConfig, PRESETS, several=True)

if __name__ == "__main__":
    define_flags()
    app.run(main)
