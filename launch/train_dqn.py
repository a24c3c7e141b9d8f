"""Trains a deep Q-network on a grid game, the paper's baseline without language.

    python -m launch.train_dqn --game snake --run_dir runs/dqn
    python -m launch.train_dqn --game snake --preset paper --sweep --run_dir runs/dqn_sweep

An iteration is `steps_per_iteration` moves in each of `num_envs` games, with a gradient step after each move.
`--sweep` trains the paper's 45 combinations of learning rate, discount and epsilon decay as one vectorised program.
The last line reads `greedy return: <before> -> <after>`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from launch.train_ms_grpo import make_game
from nlrl_jax.algorithms.dqn import DQNConfig, evaluate, init_state, make_train
from nlrl_jax.config import check_numbers, option
from nlrl_jax.files import write_atomically
from nlrl_jax.rollouts import text_games
from nlrl_jax.run import app, loop
from nlrl_jax.run import flags as config_flags
from nlrl_jax.run.plots import learning_curve
from nlrl_jax.updates import keep_finite

SWEEP = {  # the appendix's search space
    "learning_rate": (1e-5, 1e-4, 1e-3),
    "discount": (0.9, 0.95, 0.99),
    "epsilon_decay_steps": (5e3, 2e4, 1e5, 5e5, 1e6),
}


@dataclasses.dataclass(frozen=True)
class DQNRunConfig:
    """Everything that decides what a run computes."""

    game: str = option("snake", "snake, snake_poison, frozen_lake or frozen_lake_slippery")
    seed: int = option(0, "everything random follows from it")
    iterations: int = option(40, "chunks of `steps_per_iteration` moves")
    steps_per_iteration: int = option(100, "moves in each game, and gradient steps, an iteration")
    num_envs: int = option(20, "games played side by side; 1 is the paper's")
    learning_rate: float = option(5e-4, "Adam's learning rate [alpha]")
    discount: float = option(0.9, "discount factor [gamma]")
    epsilon_decay_steps: float = option(2e4, "environment steps over which epsilon falls to `epsilon_end`")
    epsilon_start: float = option(1.0, "first share of random moves")
    epsilon_end: float = option(0.1, "last share of random moves")
    buffer_size: int = option(10_000, "transitions kept for replay")
    batch_size: int = option(128, "transitions a gradient step")
    target_every: int = option(250, "gradient steps between copies to the target network")
    learning_starts: int = option(1_000, "transitions in the buffer before the first gradient step")
    max_steps: int = option(20, "steps an episode at most, in training")
    sweep: bool = option(False, "train every combination of the paper's search space at once")
    eval_episodes: int = option(50, "greedy episodes from fixed initial states")
    eval_seed: int = option(0, "which initial states; 0 are those of reproduce_ms_grpo")
    eval_steps: int = option(20, "steps an episode at most, in evaluation")
    eval_every: int = option(5, "evaluate every so many iterations")
    checkpoint_every: int = option(20, "iterations between checkpoints")

    def __post_init__(self):
        check_numbers(
            self,
            at_least_one=(
                "iterations", "steps_per_iteration", "num_envs", "buffer_size", "batch_size", "target_every",
                "max_steps", "eval_episodes", "eval_steps", "eval_every", "checkpoint_every",
            ),
            not_negative=("learning_rate", "learning_starts"),
            positive=("epsilon_decay_steps",),
        )  # fmt: skip
        self.learning()

    def learning(self) -> DQNConfig:
        """The algorithm's part. Bad settings raise ValueError here."""
        return DQNConfig(**{field.name: getattr(self, field.name) for field in dataclasses.fields(DQNConfig)})


PRESETS = {
    "quick": {},
    "paper": {
        "num_envs": 1, "learning_rate": 1e-5, "discount": 0.9, "epsilon_decay_steps": 1e5, "target_every": 1000,
        "iterations": 60_000, "steps_per_iteration": 1000, "eval_every": 100, "checkpoint_every": 1000,
    },
}  # fmt: skip


class Trainer:
    """A DQN run, or the whole sweep, with its compiled programs."""

    def __init__(self, config: DQNRunConfig):
        self.dqn = config.learning()
        self.config, self.game = config, make_game(config.game, "compact")
        env, env_params = self.game.env, self.game.params
        self.names = [_name(*values) for values in itertools.product(*SWEEP.values())] if config.sweep else []
        train = make_train(env, env_params, self.dqn)
        chunk = lambda state: train(state, config.steps_per_iteration)
        # One program either way; `vmap` over the stack of a sweep.
        self._chunk = jax.jit(keep_finite(jax.vmap(chunk) if config.sweep else chunk), donate_argnums=0)
        key = jax.random.key(config.eval_seed)
        states = text_games.reset(self.game, key, config.eval_episodes)
        play = lambda params: evaluate(
            env, env_params, params, jax.random.fold_in(key, config.eval_episodes), states, config.eval_steps
        )
        self._evaluate = jax.jit(jax.vmap(play) if config.sweep else play)

    def init(self):
        """The fresh state; with a sweep the same network and games under every combination."""
        game = self.game
        state = init_state(game.env, game.params, self.dqn, jax.random.key(self.config.seed))
        if self.config.sweep:
            grid = jnp.asarray(list(itertools.product(*SWEEP.values())), jnp.float32)
            state = jax.tree.map(lambda x: jnp.repeat(x[None], len(grid), axis=0), state)
            state = state.replace(**{name: grid[:, i] for i, name in enumerate(SWEEP)})
        # Copies: the target starts as the network itself, and the program may be given no array twice.
        return jax.tree.map(lambda leaf: jax.device_put(jnp.array(leaf), jax.devices()[0]), state)

    def update(self, state, key):
        """One iteration. The randomness lies in the state, so `key` is not used."""
        del key
        state, metrics = self._chunk(state)
        return state, {name: np.asarray(value, np.float64).mean() for name, value in metrics.items()}

    def evaluate(self, state) -> dict[str, float]:
        """Mean greedy return; of every combination and of the best one with a sweep."""
        returns = np.asarray(self._evaluate(state.params))
        if not self.config.sweep:
            return {"eval/env_return": float(returns.mean()), "eval/env_return_std": float(returns.std())}
        means = returns.mean(axis=1)
        return {f"eval/{name}": float(mean) for name, mean in zip(self.names, means, strict=True)} | {
            "eval/env_return": float(means.max()),
            "eval/env_return_std": float(returns[means.argmax()].std()),
        }


def _name(learning_rate: float, discount: float, decay: float) -> str:
    return f"lr={learning_rate:g},discount={discount:g},decay={decay:g}"


def train(trainer: Trainer, run_dir: pathlib.Path, resume: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Trains in an opened run folder. Returns the evaluations before and after."""
    config = trainer.config
    state = trainer.init()
    before = trainer.evaluate(state)
    if resume:
        state = loop.restore(run_dir, state)

    def now_and_then(done, state):
        return trainer.evaluate(state) if done % config.eval_every == 0 or done == config.iterations else {}

    state = loop.train(
        run_dir,
        trainer.update,
        state,
        seed=config.seed,
        iterations=config.iterations,
        checkpoint_every=config.checkpoint_every,
        columns=("env_return", "eval/env_return", "epsilon", "loss"),
        resume=resume,
        evaluate=now_and_then,
    )
    after = trainer.evaluate(state)
    write_atomically(run_dir / "results.json", json.dumps({"before": before, "after": after}, indent=2))
    learning_curve([run_dir], ("env_return", "eval/env_return", "q", "loss"), run_dir / "learning_curve.png")
    return before, after


def main(argv: list[str]) -> None:
    del argv
    config = config_flags.parse(DQNRunConfig, PRESETS)
    trainer = Trainer(config)
    run_dir = app.take_run_dir(config, may_change=("iterations", "checkpoint_every"))
    before, after = train(trainer, run_dir, flags.FLAGS.resume)
    ranked = sorted((name for name in after if "=" in name), key=after.get, reverse=True)
    for name in ranked:
        print(f"{after[name]:7.3f}  {name.removeprefix('eval/')}")
    print(f"curve: {run_dir / 'learning_curve.png'}")
    print(f"greedy return: {before['eval/env_return']:.3f} -> {after['eval/env_return']:.3f}")


def define_flags() -> None:
    config_flags.define(DQNRunConfig, PRESETS)
    app.define_run_flags()


if __name__ == "__main__":
    define_flags()
    app.run(main)
