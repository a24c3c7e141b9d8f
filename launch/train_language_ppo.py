"""Trains a language model to play tic-tac-toe by LLM-PPO, the baseline of NLRL (Figure 6, Table 16).

    nlrl-jax train_language_ppo --opponent random --run_dir runs/language_ppo

The policy reads the actor-critic's prompt and chooses among the legal moves by the log-probability of their digits; see
`nlrl_jax/algorithms/language_ppo.py` for departures from the paper. The last line reads
`win rate (OPPONENT): <before> -> <after>`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax

from nlrl_jax import envs
from nlrl_jax.algorithms import language_ppo
from nlrl_jax.algorithms.language_ppo import LanguagePPOConfig, LanguagePPOState
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.config import check, option, part, seed_option
from nlrl_jax.envs.tic_tac_toe import prompts, rules
from nlrl_jax.run import app, limits, local_models, loop
from nlrl_jax.run.loop import Plan
from nlrl_jax.run.nlrl.models import Learner
from nlrl_jax.text.word_policy import MovePolicy
from nlrl_jax.types import TextGame

SCRIPT = "train_language_ppo"
# The paper's table 16, which nothing varies.
TABLE_16 = ("weight_decay", "clip", "value_coef", "entropy_coef", "discount", "trace_decay", "max_grad_norm")
PAPER_RATES = {"learning_rate": 1e-5, "critic_learning_rate": 1e-5}
GAMES = {"first_move": "tic_tac_toe_first_move", "random": "tic_tac_toe"}  # by opponent


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that determines what a run computes. Defaults: nano scale."""

    own: Learner = part(Learner())
    opponent: str = option("random", "first_move or random", choices=tuple(GAMES))
    style: str = option(
        "auto", "prompts: paper, paper_zero_shot (no examples), compact, or auto: compact for the built-in models",
        choices=("auto", *prompts.STYLES),
    )  # fmt: skip
    threats: bool = option(
        False, "the prompt names the squares that would complete a row, as the actor-critic's rules do"
    )
    iterations: int = option(5, "iterations", least=1)
    learning: LanguagePPOConfig = part(
        LanguagePPOConfig(num_games=320, actor_learning_rate=3e-4, critic_learning_rate=1e-3),
        names={"num_games": "games", "actor_learning_rate": "learning_rate"},
        without=TABLE_16,
    )
    eval_games: int = option(1000, "greedy games per evaluation, half of them on each side", least=1)
    seed: int = seed_option("everything random follows from it")

    def __post_init__(self):
        check(self)


PRESETS = {
    "nano": {},
    "paper": {
        "model": "Llama-3.1-8B-Instruct", "style": "paper", "iterations": 31, "games": 512, **PAPER_RATES,
        "dtype": "bfloat16", "eval_games": 512,
    },
}  # fmt: skip


COMMAND = app.Command(
    SCRIPT,
    RunConfig,
    PRESETS,
    "scale",
    several=True,
    may_change=("iterations", "learning_rate", "critic_learning_rate", "remat", "mesh"),
)


def policy_of(config: RunConfig, start: LocalModel) -> MovePolicy:
    """The policy, with the prompt of the actor-critic's policy."""
    template = prompts.policy_template(config.own.prompt_for(config.style), config.threats)
    return MovePolicy.for_game(game_of(config, "random"), start.model, start.tokenizer, *template)


def game_of(config: RunConfig, opponent: str) -> TextGame:
    """Tic-tac-toe against an opponent, with the fields of the threats if the prompt names them."""
    game = envs.make(GAMES[opponent])
    if not config.threats:
        return game
    with_threats = lambda state: (fields := game.fields(state)) | rules.threat_fields(fields["cells"])
    return dataclasses.replace(game, fields=with_threats)


def init_state(start: LocalModel, learning: LanguagePPOConfig, key: jax.Array) -> LanguagePPOState:
    """The first state: that model as it is, with its adapter if it has one."""
    state = language_ppo.init_state(start.model, start.variables["params"], learning, key)
    return state.replace(**{learning.train: start.variables[learning.train]})


def parts_of(config: RunConfig, start: LocalModel, resume: bool) -> tuple[Callable, LanguagePPOState, Plan, Callable]:
    """The last arguments of `loop.learn`, which then leaves "win", "tie" and "loss" before and after.

    Args:
      start: the policy before its first iteration.
    """
    game, policy, key = game_of(config, config.opponent), policy_of(config, start), jax.random.key(config.seed)
    state = local_models.on_device(init_state(start, config.learning, key))
    play = jax.jit(lambda state, key: language_ppo.play(policy, game, state, key, config.eval_games))

    def evaluate(state: LanguagePPOState) -> dict[str, float]:
        shares = play(state, jax.random.fold_in(key, 0))
        return {name: float(shares[f"{name}_rate"]) for name in ("win", "tie", "loss")}

    update = jax.jit(language_ppo.make_update(policy, game, config.learning), donate_argnums=0)
    return update, state, Plan(config.seed, config.iterations, 1, ("eval/win", "win_rate"), resume), evaluate


def main(argv: list[str]) -> None:
    del argv
    config = COMMAND.parse()
    limits.check_horizon(game_of(config, config.opponent), "max_turns")
    start = config.own.load(config.learning.train, config.seed)
    run_dir, resume = COMMAND.open(config)
    stored = loop.learn(run_dir, SCRIPT, *parts_of(config, start, resume))
    print(f"win rate ({config.opponent}): {stored['before']['win']:.3f} -> {stored['after']['win']:.3f}")


if __name__ == "__main__":
    COMMAND.run(main)
