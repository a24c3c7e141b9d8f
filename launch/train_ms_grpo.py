"""Trains a language agent policy on a text game by MS-GRPO.

    python -m launch.train_ms_grpo --model nano --game frozen_lake --preset demo --run_dir runs/demo
    python -m launch.train_ms_grpo --model smollm2 --game frozen_lake --preset laptop --run_dir runs/smollm2
    python -m launch.train_ms_grpo --model ~/models/Qwen2.5-3B-Instruct --game snake --run_dir runs/qwen \
        --dtype bfloat16 --micro_batch 5 --remat

Defaults are the paper's hyperparameters. A run leaves RUN_DIR/metrics.jsonl, TensorBoard events,
checkpoints, learning_curve.png and report.html; a killed run goes on with --resume.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from absl import flags

import envs
from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig, init_state, make_update, optimizer
from nlrl_jax.config import check_numbers, option
from nlrl_jax.files import write_atomically
from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.run import app, loop, players
from nlrl_jax.run import flags as config_flags
from nlrl_jax.run.plots import learning_curve
from nlrl_jax.run.report import write_report
from nlrl_jax.run.transcript import read_evaluation, transcripts
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.types import Sampling, TextGame
from nlrl_jax.updates import keep_finite, over_seeds, stack
from nlrl_jax.weights import peft


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what a run computes."""

    game: str = option("frozen_lake", "frozen_lake, frozen_lake_slippery, snake or snake_poison")
    model: str = option("nano", "nano or nano_snake (built in), smollm2, or a local Hugging Face folder or .gguf file")
    prompt: str = option("auto", "paper, compact, or auto: compact for nano, else paper")
    seed: int = option(0, "everything random follows from it")
    iterations: int = option(700, "iterations of Algorithm 1")
    group_size: int = option(100, "episodes a group [G]")
    group_sample: int = option(25, "episodes of a group that are learned from [G']")
    num_groups: int = option(1, "initial states an iteration, one group each; 1 is the paper's")
    sampling_temperature: float = option(0.1, "temperature of AAW episode sampling [T_ep]; 0 learns from all G")
    max_turns: int = option(5, "replies an episode at most, in training")
    max_steps: int = option(10, "environment steps an episode at most, in training")
    temperature: float = option(1.5, "sampling temperature of the language model, in training")
    top_k: int = option(3, "sample from the k most likely tokens; 0 is no limit")
    top_p: float = option(1.0, "sample from the most likely tokens with this much probability")
    max_tokens: int = option(200, "tokens a reply at most")
    learning_rate: float = option(1e-4, "AdamW's learning rate [eta]")
    decay_steps: int = option(0, "gradient steps over which the learning rate falls linearly to zero; 0: constant")
    clip_low: float = option(0.1, "clip the ratio below 1 - clip_low [epsilon_low]")
    clip_high: float = option(0.1, "clip the ratio above 1 + clip_high [epsilon_up]")
    beta: float = option(0.1, "weight of the KL penalty [beta]")
    kl_estimator: str = option("k3", "k1, k2 or k3; the paper leaves it open")
    std_ddof: int = option(0, "the advantage's standard deviation divides by G - std_ddof")
    updates_per_batch: int = option(1, "gradient steps on the same episodes")
    max_grad_norm: float = option(1.0, "clip gradients to this norm")
    credit: str = option("episode", "episode (the paper's) or turn: return-to-go of each turn against the group's")
    max_temperature: float = option(0.0, "raise the sampling temperature up to this while returns stagnate; 0: off")
    num_templates: int = option(1, "wordings of the prompt, one drawn for each episode; 1 is the paper's, 3 at most")
    lora_rank: int = option(16, "rank of the adapters on all linear layers; the paper leaves it open")
    lora_alpha: float = option(32.0, "the adapter's update is scaled by alpha / rank")
    micro_batch: int = option(0, "replies differentiated at a time; 0: all at once. Memory only, same result")
    remat: bool = option(False, "recompute blocks in the backward pass. Memory only, same result")
    dtype: str = option("", "float32 or bfloat16; empty keeps the checkpoint's")
    mesh: str = option("", "devices as data,fsdp,tensor, e.g. 1,8,1; empty is one device")
    eval_episodes: int = option(50, "greedy episodes from fixed initial states, before and after")
    eval_turns: int = option(20, "replies and environment steps an episode at most, in evaluation")
    eval_every: int = option(0, "evaluate every so many iterations too; 0: only before and after")
    checkpoint_every: int = option(25, "iterations between checkpoints")

    def __post_init__(self):
        check_numbers(
            self,
            at_least_one=("iterations", "num_templates", "eval_episodes", "eval_turns", "checkpoint_every"),
            not_negative=(
                "sampling_temperature", "temperature", "max_temperature", "top_k", "learning_rate", "decay_steps",
                "clip_low", "clip_high", "beta", "std_ddof", "micro_batch", "eval_every",
            ),
            positive=("max_grad_norm",),
            finite=("top_p", "lora_alpha"),
        )  # fmt: skip


PRESETS = {
    "paper": {},
    "demo": {
        "iterations": 300, "group_size": 10, "group_sample": 5, "num_groups": 10, "sampling_temperature": 1.0,
        "temperature": 1.0, "top_k": 0, "max_tokens": 10, "learning_rate": 6e-4, "decay_steps": 330, "lora_rank": 16,
        "lora_alpha": 16.0, "micro_batch": 64, "eval_episodes": 500, "eval_every": 50,
    },
    "laptop": {
        "iterations": 20, "group_size": 8, "group_sample": 4, "max_turns": 3, "max_tokens": 80,
        "micro_batch": 4, "eval_episodes": 4, "eval_turns": 4, "checkpoint_every": 5,
    },
}  # fmt: skip


# What may differ when a run is resumed: it changes how long or how fast a run is, not what it computes.
MAY_CHANGE = ("iterations", "checkpoint_every", "micro_batch", "remat")


def learning_of(config: TrainConfig) -> MSGRPOConfig:
    """The algorithm's part of a config. Bad settings raise ValueError here."""
    names = [field.name for field in dataclasses.fields(MSGRPOConfig) if hasattr(config, field.name)]
    return MSGRPOConfig(**{name: getattr(config, name) for name in names})


def build(config: TrainConfig):
    """Game, held-out game, policy, base weights and update of a config. Bad settings raise ValueError here."""
    learning = learning_of(config)
    sampling = Sampling(config.max_tokens, config.temperature, config.top_k, config.top_p)
    prompt = players.prompt_for(config.model, config.prompt)
    mesh = players.parse_mesh(config.mesh)
    game = make_game(config.game, prompt, **map_split(config.game, "train"))
    unseen = make_game(config.game, prompt, **map_split(config.game, "held_out"))
    loaded = players.load(config.model, config.dtype, LoraConfig(config.lora_rank, config.lora_alpha), mesh)
    policy = players.make_policy(game, loaded, sampling, prompt, mesh, config.num_templates)
    return game, unseen, policy, loaded.params, learning


def main(argv: list[str]) -> None:
    del argv
    config = config_flags.parse(TrainConfig, PRESETS)
    game, unseen, policy, params, learning = build(config)
    # The one XLA program: random key in, new parameters out.
    update = jax.jit(make_update(policy, game, learning), donate_argnums=0)
    run_dir = app.take_run_dir(config, MAY_CHANGE)

    state = init_state(
        policy.model, params, learning, jax.random.fold_in(jax.random.key(config.seed), 0), config.temperature
    )
    state = players.place(state, policy.model, optimizer(learning))
    if flags.FLAGS.resume:
        state = loop.restore(run_dir, state)

    player = policy.for_evaluation()
    evaluate = players.evaluator(
        player, unseen, config.eval_episodes, config.eval_turns, config.eval_turns, seed=2**31 - 1
    )
    before = _stored(run_dir / "before.json", lambda: _evaluate(evaluate, player, unseen, {"params": state.params}))
    print(f"before training: {_line(before['summary'])}", flush=True)

    def evaluate_now_and_then(done, state):
        if not config.eval_every or done % config.eval_every:
            return {}
        summary = players.summarize(evaluate({"params": state.params, "lora": state.lora}), unseen)
        return {f"eval/{name}": value for name, value in summary.items()}

    state = loop.train(
        run_dir,
        update,
        state,
        seed=config.seed,
        iterations=config.iterations,
        checkpoint_every=config.checkpoint_every,
        columns=("return", "success" if game.success else "env_return", "kl", "reply_tokens"),
        resume=flags.FLAGS.resume,
        evaluate=evaluate_now_and_then,
    )

    after = _evaluate(evaluate, player, unseen, {"params": state.params, "lora": state.lora})
    write_atomically(run_dir / "after.json", json.dumps(after))
    name, label = ("success", "greedy success") if game.success else ("env_return", "greedy return")
    headline = f"{label}: {before['summary'][name]:.3f} -> {after['summary'][name]:.3f}"
    _write_results(run_dir, config, policy, game, before, after, state, headline)
    print(headline)


def _evaluate(evaluate, policy, game, variables) -> dict[str, Any]:
    episodes = jax.device_get(evaluate(variables))
    rows = list(range(min(6, len(episodes.terminated))))
    return {"summary": players.summarize(episodes, game), "transcripts": transcripts(policy, game, episodes, rows)}


def _stored(path: pathlib.Path, compute) -> dict[str, Any]:
    """The JSON at `path`, computed once: a resumed run does not evaluate the start again."""
    if not path.exists():
        write_atomically(path, json.dumps(compute()))
    return read_evaluation(path)


def _line(summary: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in summary.items())


def _write_results(run_dir, config, policy, game, before, after, state, headline) -> None:
    peft.save(run_dir / "adapter", policy.model.config, state.lora, base_model=config.model)
    shown = ["return", "success", "eval/success"] if "success" in after["summary"] else ["return", "env_return"]
    start = {f"eval/{name}": value for name, value in before["summary"].items()}
    curve = learning_curve([run_dir], shown + ["kl"], run_dir / "learning_curve.png", before=start)
    report = write_report(
        run_dir,
        title=f"MS-GRPO: {config.model} on {config.game}",
        question=f"Does {config.model} play {config.game} better after {config.iterations} iterations of MS-GRPO?",
        config=dataclasses.asdict(config),
        summary={name: (before["summary"][name], after["summary"][name]) for name in after["summary"]},
        curves=[curve],
        before=before["transcripts"],
        after=after["transcripts"],
        headline=headline,
        legend=game.legend,
    )
    print(f"report: {report}\ncurve:  {curve}\nadapter (PEFT): {run_dir / 'adapter'}")


def make_game(name: str, prompt: str, **options: Any) -> TextGame:
    """See `envs.make`."""
    return envs.make(name, prompt=prompt, **options)


def map_split(game: str, split: str) -> dict[str, str]:
    """The option that keeps a game's held-out maps apart, for games that have such."""
    return {"maps": split} if game.startswith("frozen_lake") else {}


class Agents:
    """The agents of all seeds, with what is needed to train them and to evaluate them on the games `names`."""

    def __init__(self, config: TrainConfig, seeds: int, names: Iterable[str], eval_seed: int, vectorize: bool):
        self.config, self.seeds = config, list(range(seeds))
        game, _, self.policy, params, self.learning = build(config)
        keys = [jax.random.fold_in(jax.random.key(seed), 0) for seed in self.seeds]
        place = lambda state: players.place(state, self.policy.model, optimizer(self.learning))
        self.state = stack(
            [place(init_state(self.policy.model, params, self.learning, key, config.temperature)) for key in keys]
        )
        update = over_seeds(make_update(self.policy, game, self.learning), vectorize)
        self.update = jax.jit(keep_finite(update), donate_argnums=0)
        prompt = players.prompt_for(config.model, config.prompt)
        self.games = {name: make_game(name, prompt) for name in names}
        sampling, model, tokenizer = self.policy.for_evaluation().sampling, self.policy.model, self.policy.tokenizer
        self.policies = {
            name: LanguageAgentPolicy.for_game(g, model, tokenizer, sampling, prompt) for name, g in self.games.items()
        }
        turns = config.eval_turns
        self.players = {
            name: players.evaluator(self.policies[name], g, config.eval_episodes, turns, turns, eval_seed)
            for name, g in self.games.items()
        }

    def variables(self, state, seed: int) -> dict[str, Any]:
        return {"params": state.params, "lora": jax.tree.map(lambda leaf: leaf[seed], state.lora)}

    def evaluate(self, state) -> dict[str, np.ndarray]:
        """Mean environment reward on every variant: {"eval/NAME": [seeds]}."""
        return {
            f"eval/{name}": np.array(
                [players.summarize(play(self.variables(state, n)), self.games[name])["env_reward"] for n in self.seeds]
            )
            for name, play in self.players.items()
        }

    def untrained(self, state) -> dict[str, float]:
        """The same of the base model, which all seeds share."""
        return {
            name: players.summarize(play({"params": state.params}), self.games[name])["env_reward"]
            for name, play in self.players.items()
        }

    def show(self, state, seed: int | None, name: str, rows: range) -> list[dict[str, Any]]:
        variables = {"params": state.params} if seed is None else self.variables(state, seed)
        return transcripts(self.policies[name], self.games[name], self.players[name](variables), rows)


def train_agents(
    config: TrainConfig,
    seeds: int,
    names: Sequence[str],
    eval_seed: int,
    vectorize: bool,
    run_dir: pathlib.Path,
    resume: bool,
) -> dict[str, Any]:
    """Trains agents in a folder and evaluates them greedily as they learn; finished ones are read from their folder.

    Args:
      names: games to evaluate on, `config.game` among them.
      eval_seed: which initial states.

    Returns:
      "seconds" of training; environment reward "initial" {game: number} and "final" {game: [seeds]}; episodes on
      `config.game`, "before" and "after" with the best seed.
    """
    done = run_dir / "results.json"
    if resume and done.exists():
        return json.loads(done.read_text())
    agents = Agents(config, seeds, names, eval_seed, vectorize)
    initial = agents.untrained(agents.state)
    state = loop.restore(run_dir, agents.state) if resume else agents.state

    def evaluate(iteration, state):
        now = (config.eval_every and iteration % config.eval_every == 0) or iteration == config.iterations
        return agents.evaluate(state) if now else {}

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
    final = agents.evaluate(state)
    best = int(np.argmax(final[f"eval/{config.game}"]))
    shown = range(min(3, config.eval_episodes))
    results = {
        "seconds": time.monotonic() - clock,
        "initial": initial,
        "final": {name: final[f"eval/{name}"].tolist() for name in names},
        "before": agents.show(state, None, config.game, shown),
        "after": agents.show(state, best, config.game, shown),
    }
    write_atomically(done, json.dumps(results))
    return results


def define_flags() -> None:
    config_flags.define(TrainConfig, PRESETS)
    app.define_run_flags()


if __name__ == "__main__":
    define_flags()
    app.run(main)
