"""The options of MS-GRPO's runs that hold in every game."""

from __future__ import annotations

import dataclasses

from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig
from nlrl_jax.config import DTYPES, check, option, part, seed_option
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.run import players
from nlrl_jax.run.host_games.environments import EnvironmentsConfig
from nlrl_jax.run.host_games.opponents import HELP as OPPONENT_HELP
from nlrl_jax.run.host_games.prompts import PromptConfig
from nlrl_jax.types import Sampling


@dataclasses.dataclass(frozen=True)
class AgentConfig:
    """An agent that learns by MS-GRPO: its model, how it acts and learns, and how it is evaluated."""

    model: str = option("nano", players.MODELS)
    revision: str = option("", "branch, tag or commit of a Hub id")
    templates: TemplateOptions = part(TemplateOptions())
    prompt: str = option("auto", "paper, compact, or auto: compact for nano, else paper")
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


IN_TURNS = ("turns", "think", "think_tokens", "episode_tokens", "turn_actions")  # the options of `TurnsConfig`


@dataclasses.dataclass(frozen=True)
class TurnsConfig:
    """The form of a turn in transcripts."""

    turns: str = option(
        "auto",
        "transcripts: chat, whose replies are messages of any length in the model's own template, or lines, one line a "
        "reply in one open message; auto: chat, but lines with --examples, for models without a chat template, and for "
        "those that have learned in lines here (built-in ones, and what warm_start, finetune_lac or export wrote)",
        choices=("auto", "chat", "lines"),
        before="lines",
    )
    think: str = option(
        "auto",
        "transcripts: on or off, thoughts before actions: in chat those of the model's template, in lines a line of "
        "its own; auto: as the template does by default, and in lines none",
        choices=("auto", "off", "on"),
        switch=True,
    )
    think_tokens: int = option(
        0,
        "chat: maximum tokens of a thought, after which it is closed and the reply goes on with its answer, for which "
        "--max_tokens are left; 0: thoughts count towards --max_tokens",
        least=0,
    )
    episode_tokens: int = option(
        0,
        "transcripts: tokens that an episode may write; it ends before a turn that could write more; 0: no limit",
        least=0,
    )
    turn_actions: int = option(
        0,
        "chat: actions that a reply may hold, in games that list theirs; 0: as many as the model has learned, else 1",
        least=0,
        before=1,
    )

    def __post_init__(self):
        check(self)


@dataclasses.dataclass(frozen=True)
class TranscriptConfig:
    """How an agent plays in transcripts, in games of the host."""

    missions: str = option("", "transcripts: kinds of tasks, separated by commas; empty: all")
    turns: TurnsConfig = part(TurnsConfig())
    give_up: int = option(
        0,
        "transcripts: useless actions in a row that end an episode in training, with a fine for the turns left; "
        "0: never",
        least=0,
    )
    prompts: PromptConfig = part(PromptConfig(), without=("prompt", "context_tokens"))
    opponent: str = option("", OPPONENT_HELP)
    data: str = option("", "alfworld, webshop: a local download of the original's games; empty: generated ones")
    environments: EnvironmentsConfig = part(EnvironmentsConfig())
    cache_mb: float = option(2000.0, "transcripts: memory for keys and values of what was read, MB; 0: none", least=0)

    def __post_init__(self):
        check(self)


def map_splits(maps: str) -> tuple[str, str]:
    """FrozenLake's maps that are trained and evaluated on, for an option --maps; "" is train."""
    return ("train", "held_out") if maps in ("", "train") else (maps, maps)


# Options of a first run: nano on FrozenLake, some minutes on two cores.
DEMO = {
    "iterations": 300, "group_size": 10, "group_sample": 5, "num_groups": 10, "sampling_temperature": 1.0,
    "temperature": 1.0, "top_k": 0, "max_tokens": 10, "learning_rate": 6e-4, "decay_steps": 330, "lora_rank": 16,
    "lora_alpha": 16.0, "micro_batch": 64, "probe": 32, "eval_episodes": 500, "eval_every": 50,
}  # fmt: skip
