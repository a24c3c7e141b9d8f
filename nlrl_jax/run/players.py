"""From names on a command line to a game, a model and a policy; what every script shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.lm.sharding import make_mesh
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.rollouts import text_games
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.types import Sampling, TextGame
from nlrl_jax.weights.load import BUILT_IN, LoadedModel, load_model

MODELS = f"{', '.join(BUILT_IN)} (built in), smollm2, a Hugging Face folder or Hub id, or a .gguf file"
NANO_TOKENS = 10  # a nano model's reply is one action tag


def prompt_for(model: str, prompt: str) -> str:
    """The prompt form: "auto" is compact for the built-in models and the paper's for every other one."""
    return ("compact" if model in BUILT_IN else "paper") if prompt == "auto" else prompt


def make_policy(
    game: TextGame, loaded: LoadedModel, sampling: Sampling, prompt: str, mesh: jax.sharding.Mesh | None = None
) -> LanguageAgentPolicy:
    """The language agent policy of a loaded model for a game."""
    model = Transformer(loaded.config, mesh=mesh)
    return LanguageAgentPolicy.for_game(game, model, loaded.tokenizer, sampling, prompt)


def load(
    name: str,
    dtype: str = "",
    lora: LoraConfig | None = None,
    mesh: jax.sharding.Mesh | None = None,
    revision: str = "",
):
    """See `weights.load.load_model`; an empty dtype keeps the checkpoint's."""
    overrides = {} if lora is None else {"lora": lora}
    return load_model(name, dtype=dtype or None, param_dtype=dtype or None, mesh=mesh, **overrides)


def parse_mesh(text: str) -> jax.sharding.Mesh | None:
    """The mesh that "data,fsdp,tensor" sizes name; None for "".

    Raises:
      ValueError: not three numbers, or not as many devices as there are.
    """
    if not text:
        return None
    sizes = text.split(",")
    if len(sizes) != 3 or not all(size.strip().isdecimal() for size in sizes):
        raise ValueError(f"--mesh {text!r} is not three numbers data,fsdp,tensor such as 1,8,1")
    return make_mesh(*map(int, sizes))


def evaluator(
    policy: LanguageAgentPolicy, game: TextGame, num: int, max_turns: int, max_steps: int, seed: int
) -> Callable[[Any], text_games.Episodes]:
    """Greedy play from `num` fixed initial states: parameters -> episodes. Compiles once."""
    policy = policy.for_evaluation()

    @jax.jit
    def evaluate(variables):
        key = jax.random.key(seed)
        states = text_games.reset(game, key, num)
        return text_games.play(policy, game, variables, jax.random.fold_in(key, num), states, max_turns, max_steps)

    return evaluate


def summarize(episodes: text_games.Episodes, game: TextGame, invalid_action_reward: float = -0.5) -> dict[str, float]:
    """Mean and standard deviation of the game's own return, success, and how well replies were formed.

    env_reward is the paper's R: the game's return and `invalid_action_reward` for each invalid action.
    """
    turns = jax.tree.map(np.asarray, episodes.turns)
    returns, active = turns.reward.sum(axis=0), turns.active
    per_turn = lambda x: float(np.where(active, x, 0).sum() / max(active.sum(), 1))
    summary = {
        "episodes": len(returns),
        "env_return": float(returns.mean()),
        "env_return_std": float(returns.std()),
        "env_reward": float((returns + invalid_action_reward * turns.invalid.sum(axis=0)).mean()),
        "terminated": float(np.mean(episodes.terminated)),
        "turns": float(active.sum(axis=0).mean()),
        "invalid_actions": per_turn(turns.invalid),
        "format_penalty": per_turn(turns.turn.parsed.format_penalty),
    }
    if game.success is not None:
        summary["success"] = float(np.mean(episodes.success))
    return summary
