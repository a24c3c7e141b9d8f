"""LLM-PPO as a training run, for any game in which a language model chooses among legal moves."""

from __future__ import annotations

import pathlib
from typing import Any

import jax

from nlrl_jax.algorithms import language_ppo
from nlrl_jax.algorithms.language_ppo import LanguagePPOConfig, LanguagePPOState
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.run import local_models, loop
from nlrl_jax.text.word_policy import MovePolicy
from nlrl_jax.types import TextGame

SCRIPT = "train_language_ppo"
# Its paper's learning rates are the defaults of `LanguagePPOConfig`; these are for models of a million weights.
NANO = LanguagePPOConfig(num_games=320, actor_learning_rate=3e-4, critic_learning_rate=1e-3)


def initial_state(model: LocalModel, learning: LanguagePPOConfig, key: jax.Array) -> LanguagePPOState:
    """The first state: the model as it is, with its adapter if it has one."""
    state = language_ppo.init_state(model.model, model.variables["params"], learning, key)
    return state.replace(**{learning.train: model.variables[learning.train]})


def train(
    run_dir: pathlib.Path,
    model: LocalModel,
    policy: MovePolicy,
    game: TextGame,
    learning: LanguagePPOConfig,
    eval_games: int,
    seed: int,
    iterations: int,
    resume: bool,
) -> dict[str, Any]:
    """Trains in a folder, and leaves "win", "tie" and "loss" before and after.

    Args:
      model: the policy's before its first iteration.
      eval_games: greedy games of an evaluation.

    Returns:
      The content of results.json.
    """
    key = jax.random.key(seed)
    state = local_models.on_device(initial_state(model, learning, key))
    play = jax.jit(lambda state, key: language_ppo.play(policy, game, state, key, eval_games))

    def evaluate(state: LanguagePPOState) -> dict[str, float]:
        shares = play(state, jax.random.fold_in(key, 0))
        return {name: float(shares[f"{name}_rate"]) for name in ("win", "tie", "loss")}

    update = jax.jit(language_ppo.make_update(policy, game, learning), donate_argnums=0)
    plan = loop.Schedule(seed, iterations, 1, ("eval/win", "win_rate"), resume)
    return loop.learn(run_dir, SCRIPT, update, state, plan, evaluate)
