"""What the actor-critic on tic-tac-toe is compared with: LLM-PPO, and models that play as prompted (NLRL, Figure 6)."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING

import jax

import envs
from envs.tic_tac_toe import prompts as prompts
from envs.tic_tac_toe.rules import board_game
from nlrl_jax.algorithms import language_actor_critic as nlac
from nlrl_jax.algorithms import language_ppo
from nlrl_jax.algorithms.language_actor_critic import Setting, State
from nlrl_jax.algorithms.language_ppo import LanguagePPOConfig, LanguagePPOState
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.usage import Usage
from nlrl_jax.roles.board_games import Viewer
from nlrl_jax.rollouts.board_games import Opponent
from nlrl_jax.run import loop, models, players
from nlrl_jax.text.word_policy import MovePolicy
from nlrl_jax.types import Sampling

if TYPE_CHECKING:
    from launch.train_language_actor_critic import RunConfig

GAMES = {"first_move": "tic_tac_toe_first_move", "random": "tic_tac_toe"}  # by opponent


def as_prompted(config: RunConfig) -> dict[str, str]:
    """What a model of `--prompted` is called in the plot -> its name."""
    names = [name for name in config.prompted.split(",") if name]
    shown = lambda name: pathlib.PurePath(config.endpoint_model if name == "endpoint" else name).name
    return {f"{shown(name)} as prompted": name for name in names}


def play_prompted(config: RunConfig, name: str, opponent: Opponent, paid: pathlib.Path, usage: Usage) -> dict:
    """A model that does not learn plays greedily, asked as the paper asks. Returns what `train_ppo` does."""
    asked = dataclasses.replace(config, aggregator=name)
    model = models.large_model_of(asked, {}, paid, usage)
    game = board_game()
    style = prompts.roles(players.prompt_for(name, config.style))
    setting = Setting(game, opponent, style, model, model, None, None, config.algorithm())
    greedy = Sampling(config.large_max_tokens, 0.0)
    shares, _ = nlac.evaluate(State(model, model), setting, Viewer(game), config.eval_games, greedy, config.seed + 1)
    found = {f"eval/{name}": share for name, share in shares.items()}
    return {"before": found, "after": found}


def ppo_policy(config: RunConfig, start: LocalModel) -> MovePolicy:
    """LLM-PPO's policy: a model that is asked what the actor-critic's policy is asked."""
    asked = prompts.policy_template(players.prompt_for(config.model, config.style))
    return MovePolicy.for_game(envs.make("tic_tac_toe"), start.model, start.tokenizer, *asked)


def ppo_state(start: LocalModel, learning: LanguagePPOConfig, key: jax.Array) -> LanguagePPOState:
    """LLM-PPO's first state: that model as it is, with its adapter if it has one."""
    state = language_ppo.init_state(start.model, start.variables["params"], learning, key)
    return state.replace(**{learning.train: start.variables[learning.train]})


def train_ppo(config: RunConfig, start: LocalModel, opponent: str, run_dir: pathlib.Path, resume: bool) -> dict:
    """LLM-PPO at as many games. Returns {"before", "after": win, tie and loss}.

    Args:
      start: the policy that the actor-critic starts with.
    """
    game = envs.make(GAMES[opponent])
    policy = ppo_policy(config, start)
    learning = LanguagePPOConfig(
        num_games=config.games, actor_learning_rate=config.ppo_learning_rate,
        critic_learning_rate=config.ppo_critic_learning_rate, train=config.train,
    )  # fmt: skip
    key = jax.random.key(config.seed)
    state = models.on_device(ppo_state(start, learning, key))
    play = jax.jit(lambda state, key: language_ppo.play(policy, game, state, key, config.eval_games))

    def evaluate(state):
        found = play(state, jax.random.fold_in(key, 0))
        return {f"eval/{name}": float(found[f"{name}_rate"]) for name in ("win", "tie", "loss")}

    before = evaluate(state)
    if resume:
        state = loop.restore(run_dir, state)
    state = loop.train(
        run_dir,
        jax.jit(language_ppo.make_update(policy, game, learning), donate_argnums=0),
        state,
        seed=config.seed,
        iterations=config.iterations,
        checkpoint_every=config.checkpoint_every,
        columns=("eval/win", "win_rate"),
        resume=resume,
        evaluate=lambda done, state: evaluate(state),
    )
    return {"before": before, "after": evaluate(state)}
