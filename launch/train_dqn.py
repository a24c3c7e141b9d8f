"""Trains a deep Q-network on a grid game, the paper's baseline without language.

    nlrl-jax train_dqn --game snake --run_dir runs/dqn
    nlrl-jax train_dqn --game snake --preset paper --sweep --run_dir runs/dqn_sweep

An iteration is `steps_per_iteration` moves in each of `num_envs` games, with a gradient step after each move.
`--sweep` trains the paper's 45 combinations of learning rate, discount and epsilon decay as one vectorised program.
`--buffer_size` and `--learning_starts` are in transitions. The last line reads `greedy return: <before> -> <after>`.
"""

from __future__ import annotations

import dataclasses

from nlrl_jax import envs
from nlrl_jax.config import option
from nlrl_jax.run import app, limits
from nlrl_jax.run.dqn import PAPER, SCRIPT, SWEEP, DQNTrainer, DQNTrainingConfig, train
from nlrl_jax.run.flags import leave_out


@dataclasses.dataclass(frozen=True)
class DQNRunConfig(DQNTrainingConfig):
    """Everything that determines what a run computes."""

    game: str = option("snake", f"a game on a grid: {', '.join(envs.GRID_GAMES)}, or your own as my_module:text_game")
    sweep: bool = option(False, "train every combination of the paper's search space at once")


COMMAND = app.Command(
    SCRIPT,
    DQNRunConfig,
    {"quick": {}, "paper": PAPER},
    may_change=("iterations", "checkpoint_every", "learning_rate"),
)


def main(argv: list[str]) -> None:
    del argv
    config = COMMAND.parse()
    if config.sweep:
        leave_out("with --sweep, which trains several values of it", *SWEEP)
    trainer = DQNTrainer(config, envs.make(config.game, "compact"), config.sweep)
    limits.check_horizon(trainer.game, "max_steps")
    run_dir, resume = COMMAND.open(config)
    stored = train(trainer, run_dir, resume)
    before, after = stored["before"], stored["after"]
    for name in sorted((name for name in after if "=" in name), key=after.get, reverse=True):
        print(f"{after[name]:7.3f}  {name}")
    print(f"curve: {run_dir / 'learning_curve.png'}")
    print(f"greedy return: {before['env_return']:.3f} -> {after['env_return']:.3f}")


if __name__ == "__main__":
    COMMAND.run(main)
