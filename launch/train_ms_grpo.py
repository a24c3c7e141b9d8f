r"""Trains a language agent policy on a text game by MS-GRPO.

    nlrl-jax train_ms_grpo --preset demo --run_dir runs/demo
    nlrl-jax train_ms_grpo --model smollm2 --preset laptop --run_dir runs/smollm2
    nlrl-jax train_ms_grpo --model ~/models/Qwen2.5-3B-Instruct --game snake --dtype bfloat16 --micro_batch 5 \
        --remat --run_dir runs/qwen
    nlrl-jax train_ms_grpo --game my_module:text_game --run_dir runs/mine
    nlrl-jax train_ms_grpo --preset babyai --run_dir runs/babyai
    nlrl-jax train_ms_grpo --run_dir runs/demo --resume

Defaults are the paper's hyperparameters, `--updates_per_batch` and `--invalid_action_reward` among them; `--top_p` is
an addition, and the paper leaves `--kl_estimator` open. `--revision` names a branch, tag or commit of a Hub id. A run
writes metrics.jsonl, TensorBoard events, checkpoints, results.json, learning_curve.png, report.html and a PEFT adapter
to its folder; a killed run continues with --resume.

BabyAI, ALFWorld, WebShop, Crafter and your own host games are played in transcripts, which grow with the episode
(`--context`; nlrl_jax/algorithms/ms_grpo_transcripts.py): chats in the model's own template, whose replies are messages
with an action in them, or lines with one action each (`--turns`).

Departure from the paper: FrozenLake trains on seven eighths of the maps and is evaluated on the others, which the model
has never seen; `--maps all` draws both from all maps, as the paper does.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from absl import flags

from nlrl_jax import envs
from nlrl_jax.config import option, part
from nlrl_jax.lm.sharding import whole_rows
from nlrl_jax.run import app, limits, players
from nlrl_jax.run.flags import leave_out
from nlrl_jax.run.host_games.environments import IN_WORKERS
from nlrl_jax.run.host_games.opponents import opponent_option
from nlrl_jax.run.ms_grpo.agents import Agents, load_policy
from nlrl_jax.run.ms_grpo.config import DEMO, IN_TURNS, AgentConfig, TranscriptConfig, map_splits
from nlrl_jax.run.ms_grpo.token_players import settled
from nlrl_jax.run.ms_grpo.training import EVAL_SEED, SCRIPT
from nlrl_jax.run.ms_grpo.transcripts import TranscriptTraining
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.types import TextGame
from nlrl_jax.weights.load import load_tokenizer

# Options for games in transcripts alone.
IN_TRANSCRIPTS = (
    "missions", *IN_TURNS, "give_up", "examples", "history", "opponent", "data", *IN_WORKERS, "cache_mb",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TrainConfig(AgentConfig):
    """Everything that determines what a run computes."""

    game: str = option(
        "frozen_lake",
        f"{', '.join(dict.fromkeys(envs.GAMES + envs.HOST_GAMES))}, {envs.OTHER_HELP}",
    )
    context: str = option(
        "auto",
        "what the model reads: the current state, or the transcript of the episode so far; auto: transcript in "
        f"{', '.join(envs.IN_TRANSCRIPTS)}, other packages' environments and your own host_game",
        choices=("auto", "state", "transcript"),
    )
    maps: str = option(
        "", "FrozenLake's maps: all (the paper's), held_out, or train, evaluated on held_out; empty: train",
        choices=("", "all", "train", "held_out"),
    )  # fmt: skip
    transcripts: TranscriptConfig = part(TranscriptConfig())

    def __post_init__(self):
        super().__post_init__()
        if self.maps and self.game not in envs.WITH_MAPS:
            raise ValueError(f"--maps does nothing for {self.game}, only for {', '.join(envs.WITH_MAPS)}; leave it out")


PRESETS = {
    "paper": {},
    "demo": DEMO,
    "laptop": {
        "iterations": 20, "group_size": 8, "group_sample": 4, "max_turns": 3, "max_tokens": 80,
        "micro_batch": 4, "probe": 8, "eval_episodes": 16, "eval_turns": 6, "checkpoint_every": 5,
    },
    "babyai": {
        "game": "babyai", "model": "nano_babyai", "iterations": 60, "group_size": 8, "group_sample": 8, "num_groups": 6,
        "sampling_temperature": 0.0, "temperature": 1.0, "top_k": 0, "max_tokens": 8, "max_turns": 20, "beta": 0.0,
        "learning_rate": 1e-3, "eval_episodes": 120, "eval_turns": 30, "eval_steps": 30, "eval_every": 20,
        "checkpoint_every": 5,
    },
    "evening": {
        "prompt": "compact", "iterations": 50, "group_size": 8, "group_sample": 4, "num_groups": 8, "max_turns": 3,
        "sampling_temperature": 1.0, "temperature": 1.0, "top_k": 0, "max_tokens": 14, "beta": 0.0,
        "learning_rate": 1e-4, "decay_steps": 125, "micro_batch": 16, "probe": 8, "eval_episodes": 200,
        "eval_turns": 10, "eval_steps": 10, "eval_every": 25, "checkpoint_every": 5,
    },
    "chat": {
        "iterations": 30, "group_size": 8, "group_sample": 8, "num_groups": 4, "sampling_temperature": 0.0,
        "temperature": 1.0, "top_k": 0, "max_tokens": 16, "max_turns": 10, "beta": 0.0, "invalid_action_reward": -0.05,
        "learning_rate": 1e-4, "eval_episodes": 100, "eval_turns": 10, "checkpoint_every": 5,
    },
}  # fmt: skip


COMMAND = app.Command(
    SCRIPT, TrainConfig, PRESETS, several=True,
    # its length, speed or logging, how fast it learns, and what an invalid action costs
    may_change=("iterations", "checkpoint_every", "learning_rate", "invalid_action_reward", "micro_batch", "remat",
                "mesh", "probe", *IN_WORKERS),
)  # fmt: skip


def games_of(name: str, prompt: str, maps: str) -> tuple[TextGame, TextGame]:
    """The game to train on and the one to evaluate on."""
    if name not in envs.WITH_MAPS:
        return (envs.make(name, prompt),) * 2
    learned, evaluated = (envs.make(name, prompt, maps=split) for split in map_splits(maps))
    return learned, evaluated


def build(config: TrainConfig) -> tuple[TextGame, TextGame, LanguageAgentPolicy, Any]:
    """Game, evaluation game, policy and base weights of a config. Bad settings raise ValueError here."""
    game, evaluated = games_of(config.game, players.prompt_for(config.model, config.prompt), config.maps)
    return game, evaluated, *load_policy(config, game)


def check_options(config: TrainConfig) -> None:
    """Refuses options on the command line that do nothing beside the others. ValueError: names the first."""
    if not config.learning.beta:
        leave_out("with --beta 0", "kl_estimator")
    if not config.learning.sampling_temperature:
        leave_out("with --sampling_temperature 0, which learns from all episodes", "group_sample")
    if config.learning.credit != "state":
        leave_out("without --credit state", "step_discount", "step_weight")
    if config.context == "state":
        leave_out("with --context state, where each prompt shows one state", *IN_TRANSCRIPTS)
    else:
        leave_out("with --context transcript, where a turn is one step (--max_turns)", "max_steps")
        leave_out("with --context transcript, where a turn is one step (--eval_turns)", "eval_steps")
        leave_out("with --context transcript", "probe")


def main(argv: list[str]) -> None:
    del argv
    config = COMMAND.parse()
    config = dataclasses.replace(config, context=envs.context_of(config.game, config.context))
    check_options(config)
    if config.context == "transcript":
        chosen = flags.FLAGS["model"].present or flags.FLAGS.resume
        if warning := players.check_reader(config.model, config.game, envs.READ_BY.get(config.game, ""), chosen):
            print(f"warning: {warning}")
        tokenizer = load_tokenizer(config.model, config.revision)
        turns = settled(config.transcripts.turns, config.model, tokenizer)
        config = dataclasses.replace(config, transcripts=dataclasses.replace(config.transcripts, turns=turns))
        game_options = opponent_option(config.transcripts.opponent, config.game)
        game_options |= dataclasses.asdict(config.transcripts.environments) | {"turn_actions": turns.turn_actions}
        games = envs.make_host_pair(config.game, map_splits(config.maps), data=config.transcripts.data, **game_options)
        limits.check_horizon(games[0], "max_turns", "eval_turns")
        beyond = limits.capped(games[0], max_turns=config.learning.max_turns, eval_turns=config.eval_turns)
        training = TranscriptTraining(config, config.transcripts, config.game, *games)
    else:
        game, evaluated = games_of(config.game, players.prompt_for(config.model, config.prompt), config.maps)
        limits.check_horizon(evaluated, "max_steps", "eval_steps")
        beyond = limits.capped(evaluated, max_steps=config.learning.max_steps, eval_steps=config.eval_steps)
        policy = load_policy(config, game)
        training = Agents(config, config.game, game, *policy, {config.game: evaluated}, EVAL_SEED)
    print("".join(f"{sentence}\n" for sentence in beyond), end="")
    size = config.learning.micro_batch
    if size != (rows := whole_rows(size, training.mesh)):
        print(f"micro_batch {size} becomes {rows}: equally many replies on each of the devices that share a batch")
    training.run(*COMMAND.open(config))


if __name__ == "__main__":
    COMMAND.run(main)
