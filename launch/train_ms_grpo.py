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

BabyAI, ALFWorld, WebShop, Crafter and your own host games are played in transcripts, which grow with the episode: each
reply is one line with one action (`--context`; nlrl_jax/algorithms/ms_grpo_transcripts.py).

Departure from the paper: FrozenLake trains on seven eighths of the maps and is evaluated on the others, which the model
has never seen; `--maps all` draws both from all maps, as the paper does.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import flags

from nlrl_jax import envs
from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig, init_state, make_update
from nlrl_jax.config import DTYPES, check, option, part, seed_option
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.lm.sharding import whole_rows
from nlrl_jax.run import app, limits, players, results
from nlrl_jax.run.flags import leave_out
from nlrl_jax.run.host_games.prompts import PromptConfig
from nlrl_jax.run.ms_grpo.training import SCRIPT, Training
from nlrl_jax.run.ms_grpo.transcripts import TranscriptTraining
from nlrl_jax.run.sizing import fit_micro_batch
from nlrl_jax.run.transcript import transcripts
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.types import Sampling, TextGame
from nlrl_jax.updates import keep_finite, over_seeds, seed_mesh, spread, stack

EVAL_SEED = 2**31 - 1  # of the states that a run is evaluated from
# Options for games in transcripts alone.
IN_TRANSCRIPTS = ("missions", "think", "give_up", "examples", "history", "data", "cache_mb")


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Everything that determines what a run computes."""

    game: str = option(
        "frozen_lake",
        f"{', '.join(dict.fromkeys(envs.GAMES + envs.HOST_GAMES))}, or your own as my_module:text_game or host_game",
    )
    context: str = option(
        "auto",
        "what the model reads: the current state, or the transcript of the episode so far; auto: transcript in "
        f"{', '.join(envs.IN_TRANSCRIPTS)} and your own host_game",
        choices=("auto", "state", "transcript"),
    )
    maps: str = option(
        "", "FrozenLake's maps: all (the paper's), held_out, or train, evaluated on held_out; empty: train",
        choices=("", "all", "train", "held_out"),
    )  # fmt: skip
    model: str = option("nano", players.MODELS)
    revision: str = option("", "branch, tag or commit of a Hub id")
    templates: TemplateOptions = part(TemplateOptions())
    prompt: str = option("auto", "paper, compact, or auto: compact for nano, else paper")
    missions: str = option("", "transcripts: kinds of tasks, separated by commas; empty: all")
    think: bool = option(False, "transcripts: the model writes a line of thought before each action")
    give_up: int = option(
        0,
        "transcripts: useless actions in a row that end an episode in training, with a fine for the turns left; "
        "0: never",
        least=0,
    )
    prompts: PromptConfig = part(PromptConfig(), without=("prompt", "context_tokens"))
    data: str = option("", "alfworld, webshop: a local download of the original's games; empty: generated ones")
    cache_mb: float = option(1000.0, "transcripts: memory for keys and values of what was read, MB; 0: none", least=0)
    iterations: int = option(700, "iterations of Algorithm 1", least=1)
    learning: MSGRPOConfig = part(MSGRPOConfig(), without=("std_ddof", "max_grad_norm"))
    sampling: Sampling = part(Sampling(max_tokens=200, temperature=1.5, top_k=3))
    lora: LoraConfig = part(LoraConfig(), names={"rank": "lora_rank", "alpha": "lora_alpha"})
    dtype: str = option("", "float32 or bfloat16; empty keeps the checkpoint's", choices=DTYPES)
    mesh: str = option("", players.MESH)
    seed: int = seed_option("everything random follows from it")
    eval_episodes: int = option(50, "greedy episodes of an evaluation, from fixed initial states", least=1)
    eval_turns: int = option(20, "maximum replies per evaluation episode", least=1)
    eval_steps: int = option(20, "maximum environment steps per evaluation episode", least=1)
    eval_every: int = option(0, "iterations between evaluations during training; 0: only before and after", least=0)
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
}  # fmt: skip


COMMAND = app.Command(
    SCRIPT, TrainConfig, PRESETS, several=True,
    # its length, speed or logging, and how fast it learns
    may_change=("iterations", "checkpoint_every", "learning_rate", "micro_batch", "remat", "mesh", "probe"),
)  # fmt: skip


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


class Agents(Training):
    """The agent of a config, or the agents of several seeds as one stack, and the games that they are evaluated on.

    Args:
      games: by name, the config's own among them. eval_seed: which initial states.
      seeds: of a stack, trained by one program; None is the config's seed alone.
      vectorize, apart: of a stack: all seeds at once; spread over the devices.
    """

    def __init__(
        self,
        config: TrainConfig,
        games: Mapping[str, TextGame],
        eval_seed: int,
        seeds: Sequence[int] | None = None,
        vectorize: bool = False,
        apart: bool = False,
    ):
        self.config, self.games, self.seeds = config, games, seeds
        self.game, _, self.policy, params = build(config)
        self.shows = f"eval/{config.game}" if seeds else "success" if self.game.success else "env_return"
        self.network, self.mesh, self.legend = self.policy.model.config, self.policy.model.mesh, self.game.legend
        together = len(seeds or [0]) if vectorize else 1
        learning, line = fit_micro_batch(self.policy, self.game, config.learning, together)
        if line:
            print(line)
        update = make_update(self.policy, self.game, learning)
        fresh = lambda seed: jax.random.fold_in(jax.random.key(seed), 0)
        init = lambda seed: init_state(self.policy.model, params, config.learning, fresh(seed))
        mesh = seed_mesh(len(seeds)) if apart else None
        if seeds is None:
            self.state = init(config.seed)
        else:
            self.state = stack([init(seed) for seed in seeds])
            self.state = spread(self.state, mesh) if apart else self.state
            update = keep_finite(over_seeds(update, vectorize, mesh))
        self.update = jax.jit(update, donate_argnums=0)  # the one XLA program: random key in, new parameters out
        self.place = jax.devices()[0] if apart else None
        own, prompt = self.policy.for_evaluation(), players.prompt_for(config.model, config.prompt)
        form = own.model, own.tokenizer, own.sampling, prompt
        self.policies = {name: LanguageAgentPolicy.for_game(game, *form) for name, game in games.items()}
        how = config.eval_episodes, config.eval_turns, config.eval_steps, eval_seed
        self.players = {name: players.evaluator(self.policies[name], game, *how) for name, game in games.items()}
        self.eval_seed = eval_seed

    def variables(self, state: Any, seed: int | None = None) -> dict[str, Any]:
        """What the agent of a seed plays with, on the device where agents are evaluated."""
        lora = state.lora if seed is None else jax.tree.map(lambda leaf: leaf[seed], state.lora)
        return self._here({"params": state.params, "lora": lora})

    def _here(self, variables: dict[str, Any]) -> dict[str, Any]:
        return variables if self.place is None else jax.device_put(variables, self.place, may_alias=False)

    def judge(self, variables: dict[str, Any], shown: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Greedy play: (one agent's metrics on its own game, or its environment reward on each; episodes as text)."""
        penalty, name = self.config.learning.invalid_action_reward, self.config.game
        episodes = {game: jax.device_get(play(variables)) for game, play in self.players.items()}
        found = {game: players.summarize(played, self.games[game], penalty) for game, played in episodes.items()}
        rows = range(min(shown, self.config.eval_episodes))
        text = transcripts(self.policies[name], self.games[name], episodes[name], rows) if shown else []
        if self.seeds is None:
            return found[name], text
        return {game: summary["env_reward"] for game, summary in found.items()}, text

    def too_short(self) -> list[str]:
        """See `Training.too_short`."""
        config, learning, evaluated = self.config, self.config.learning, self.games[self.config.game]
        first, limit = limits.first_states(self.game, config.seed), (learning.max_turns, learning.max_steps)
        sentences = limits.too_short("training", self.game, first, "max_turns", *limit)
        first = limits.first_states(evaluated, self.eval_seed, config.eval_episodes)
        limit = config.eval_turns, config.eval_steps
        return sentences + limits.too_short("the evaluation", evaluated, first, "eval_turns", *limit)

    def untrained(self) -> dict[str, Any]:
        """See `Training.untrained`."""
        return self._here(super().untrained())

    def evaluate(self, state: Any) -> dict[str, Any]:
        """{metric: number}, or of a stack {game: environment rewards [seeds]}."""
        if self.seeds is None:
            return self.judge(self.variables(state), 0)[0]
        found = [self.judge(self.variables(state, n), 0)[0] for n in range(len(self.seeds))]
        return {name: np.array([one[name] for one in found]) for name in self.games}


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
        games = envs.make_host_pair(config.game, config.map_splits, data=config.data)
        limits.check_horizon(games[0], "max_turns", "eval_turns")
        beyond = limits.capped(games[0], max_turns=config.learning.max_turns, eval_turns=config.eval_turns)
        training = TranscriptTraining(config, *games)
    else:
        game = games_of(config)[1]
        limits.check_horizon(game, "max_steps", "eval_steps")
        beyond = limits.capped(game, max_steps=config.learning.max_steps, eval_steps=config.eval_steps)
        training = Agents(config, {config.game: game}, EVAL_SEED)
    print("".join(f"{sentence}\n" for sentence in beyond), end="")
    size = config.learning.micro_batch
    if size != (rows := whole_rows(size, training.mesh)):
        print(f"micro_batch {size} becomes {rows}: equally many replies on each of the devices that share a batch")
    training.run(*COMMAND.open(config))


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
    """Agents of one config under its seed and those that follow, trained together and evaluated greedily as they learn.

    Finished ones are read from their folder.

    Args:
      names: games to evaluate on, `config.game` among them. eval_seed: which initial states.
      vectorize, apart: all seeds at once; spread over the devices.

    Returns:
      What `results.read` reads: environment reward "before" {game: number} and "after" {game: [seeds]}, "seconds" of
      training, and "transcripts" on `config.game`, those after with the best seed.
    """
    if resume and (run_dir / results.RESULTS).exists() and (stored := results.read(run_dir))["after"]:
        return stored
    prompt = players.prompt_for(config.model, config.prompt)
    games = {name: envs.make(name, prompt) for name in names}
    agents = Agents(config, games, eval_seed, list(range(config.seed, config.seed + seeds)), vectorize, apart)
    start, clock = agents.start(run_dir, resume, 3), time.monotonic()
    state = agents.train(run_dir, resume)
    seconds, after = time.monotonic() - clock, agents.evaluate(state)
    _, text = agents.judge(agents.variables(state, int(np.argmax(after[config.game]))), 3)
    results.write(
        run_dir, script=SCRIPT, before=start["before"], after=after, seeds=agents.seeds, seconds=seconds,
        transcripts={**start["transcripts"], "after": text},
    )  # fmt: skip
    return results.read(run_dir)


if __name__ == "__main__":
    COMMAND.run(main)
