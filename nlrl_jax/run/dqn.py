"""A deep Q-network on a grid game as a training run: one, or a sweep over its settings as one program."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.algorithms.dqn import DQNConfig, check_env, evaluate, init_state, make_train
from nlrl_jax.config import check, option, part, seed_option
from nlrl_jax.rollouts import text_games
from nlrl_jax.run import loop
from nlrl_jax.run.plots import learning_curve
from nlrl_jax.types import TextGame
from nlrl_jax.updates import keep_finite

SCRIPT = "train_dqn"
EVAL_SEED, EVAL_STEPS = 0, 20  # initial states and maximum steps of evaluation episodes, the paper's
SWEEP = {  # the appendix's search space
    "learning_rate": (1e-5, 1e-4, 1e-3),
    "discount": (0.9, 0.95, 0.99),
    "epsilon_decay_steps": (5e3, 2e4, 1e5, 5e5, 1e6),
}
PAPER = {
    "num_envs": 1, "learning_rate": 1e-5, "discount": 0.9, "epsilon_decay_steps": 1e5, "target_every": 1000,
    "iterations": 60_000, "steps_per_iteration": 1000, "eval_every": 100, "checkpoint_every": 1000,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class DQNTrainingConfig:
    """How a DQN learns and is evaluated, in any game."""

    seed: int = seed_option("everything random follows from it")
    iterations: int = option(40, "chunks of steps_per_iteration moves", least=1)
    steps_per_iteration: int = option(100, "moves in each game, and gradient steps, per iteration", least=1)
    dqn: DQNConfig = part(
        DQNConfig(learning_rate=5e-4, epsilon_decay_steps=2e4, target_every=250, num_envs=20),
        without=("epsilon_start", "epsilon_end"),
    )
    eval_episodes: int = option(50, "greedy episodes from fixed initial states", least=1)
    eval_every: int = option(5, "iterations between evaluations", least=1)
    checkpoint_every: int = option(20, "iterations between checkpoints", least=1)

    def __post_init__(self):
        check(self)


class DQNTrainer:
    """A DQN, or the whole sweep, with its compiled programs.

    Args:
      sweep: trains every combination in `SWEEP`.
    """

    def __init__(self, config: DQNTrainingConfig, game: TextGame, sweep: bool = False):
        self.config, self.dqn, self.game, self.sweep = config, config.dqn, game, sweep
        env, env_params = self.game.env, self.game.params
        check_env(env, env_params)
        self.names = [_name(*values) for values in itertools.product(*SWEEP.values())] if sweep else []
        train = make_train(env, env_params, self.dqn)
        key = jax.random.key(EVAL_SEED)
        states = text_games.reset(self.game, key, config.eval_episodes)

        def chunk(state):
            return train(state, config.steps_per_iteration)

        def play(params):
            key_play = jax.random.fold_in(key, config.eval_episodes)
            return evaluate(env, env_params, params, key_play, states, EVAL_STEPS)

        def for_all(run):
            """One program for the stack of a sweep. On a CPU its settings take turns in it: faster, and less memory."""
            if not sweep:
                return run
            return functools.partial(jax.lax.map, run) if jax.default_backend() == "cpu" else jax.vmap(run)

        self._chunk = jax.jit(keep_finite(for_all(chunk)), donate_argnums=0)
        self._evaluate = jax.jit(for_all(play))

    def init(self):
        """The initial state; with a sweep, the same network and games under every combination."""
        game = self.game
        state = init_state(game.env, game.params, self.dqn, jax.random.key(self.config.seed))
        if self.sweep:
            grid = jnp.asarray(list(itertools.product(*SWEEP.values())), jnp.float32)
            state = jax.tree.map(lambda x: jnp.repeat(x[None], len(grid), axis=0), state)
            state = state.replace(**{name: grid[:, i] for i, name in enumerate(SWEEP)})
        # Copies: the target starts as the network itself, and the program may be given no array twice.
        return jax.tree.map(lambda leaf: jax.device_put(jnp.array(leaf), jax.devices()[0]), state)

    def update(self, state, key):
        """One iteration. The state holds the randomness, so `key` is not used."""
        del key
        if not self.sweep:  # a resumed run may have another
            state = state.replace(learning_rate=jnp.float32(self.dqn.learning_rate))
        state, metrics = self._chunk(state)
        return state, {name: np.asarray(value, np.float64).mean() for name, value in metrics.items()}

    def evaluate(self, state) -> dict[str, float]:
        """Mean greedy return; of every combination and of the best one with a sweep."""
        returns = np.asarray(self._evaluate(state.params))
        if not self.sweep:
            return {"env_return": float(returns.mean()), "env_return_std": float(returns.std())}
        means = returns.mean(axis=1)
        return {name: float(mean) for name, mean in zip(self.names, means, strict=True)} | {
            "env_return": float(means.max()),
            "env_return_std": float(returns[means.argmax()].std()),
        }


def _name(learning_rate: float, discount: float, decay: float) -> str:
    return f"lr={learning_rate:g},discount={discount:g},decay={decay:g}"


def train(trainer: DQNTrainer, run_dir: pathlib.Path, resume: bool) -> dict[str, Any]:
    """Trains in an opened run folder. Returns results.json's content."""
    config, columns = trainer.config, ("env_return", "eval/env_return", "epsilon", "loss")
    plan = loop.Schedule(config.seed, config.iterations, config.checkpoint_every, columns, resume, config.eval_every)
    drawn, picture = ("env_return", "eval/env_return", "q", "loss"), run_dir / "learning_curve.png"

    def draw(state) -> None:
        learning_curve([run_dir], drawn, picture)

    return loop.learn(run_dir, SCRIPT, trainer.update, trainer.init(), plan, trainer.evaluate, draw)
