"""Trains a language model to play tic-tac-toe by LLM-PPO, the baseline of NLRL (Figure 6, Table 16).

    nlrl-jax train_language_ppo --opponent random --run_dir runs/language_ppo

The policy reads the actor-critic's prompt and chooses among the legal moves by the log-probability of their digits; see
`nlrl_jax/algorithms/language_ppo.py` for departures from the paper. The last line reads
`win rate (OPPONENT): <before> -> <after>`.
"""

from __future__ import annotations

import dataclasses

from nlrl_jax import envs
from nlrl_jax.algorithms.language_ppo import LanguagePPOConfig
from nlrl_jax.config import check, option, part, seed_option
from nlrl_jax.envs.tic_tac_toe import prompts, rules
from nlrl_jax.run import app, limits
from nlrl_jax.run.nlrl import language_ppo
from nlrl_jax.run.nlrl.language_ppo import NANO, SCRIPT
from nlrl_jax.run.nlrl.models import Learner
from nlrl_jax.text.word_policy import MovePolicy
from nlrl_jax.types import TextGame

# The paper's table 16, which nothing varies.
TABLE_16 = ("weight_decay", "clip", "value_coef", "entropy_coef", "discount", "trace_decay", "max_grad_norm")
PAPER_RATES = {"learning_rate": 1e-5, "critic_learning_rate": 1e-5}


@dataclasses.dataclass(frozen=True)
class PPORunConfig:
    """Everything that determines what a run computes. Defaults: nano scale."""

    learner: Learner = part(Learner())
    opponent: str = option("random", "first_move or random", choices=("first_move", "random"))
    style: str = option(
        "auto", "prompts: paper, paper_zero_shot (no examples), compact, or auto: compact for the built-in models",
        choices=("auto", *prompts.STYLES),
    )  # fmt: skip
    threats: bool = option(
        False, "the prompt names the squares that would complete a row, as the actor-critic's rules do"
    )
    iterations: int = option(5, "iterations", least=1)
    learning: LanguagePPOConfig = part(
        NANO,
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
    PPORunConfig,
    PRESETS,
    "scale",
    several=True,
    may_change=("iterations", "learning_rate", "critic_learning_rate", "remat", "mesh"),
)


def game_of(opponent: str, threats: bool) -> TextGame:
    """Tic-tac-toe against an opponent, with the fields of the threats if the prompt names them."""
    game = envs.make("tic_tac_toe", opponent=opponent)
    if not threats:
        return game

    def with_threats(state):
        fields = game.fields(state)
        return fields | rules.threat_fields(fields["cells"])

    return dataclasses.replace(game, fields=with_threats)


def main(argv: list[str]) -> None:
    del argv
    config = COMMAND.parse()
    game = game_of(config.opponent, config.threats)
    limits.check_horizon(game, "max_turns")
    model = config.learner.load(config.learning.train, config.seed)
    run_dir, resume = COMMAND.open(config)
    template = prompts.policy_template(config.learner.prompt_for(config.style), config.threats)
    policy = MovePolicy.for_game(game, model.model, model.tokenizer, *template)
    training = config.learning, config.eval_games, config.seed, config.iterations
    stored = language_ppo.train(run_dir, model, policy, game, *training, resume)
    print(f"win rate ({config.opponent}): {stored['before']['win']:.3f} -> {stored['after']['win']:.3f}")


if __name__ == "__main__":
    COMMAND.run(main)
