"""PPO on MJX and on MuJoCo's C simulator: the same training curve within the noise of the seeds?

    PYTHONPATH=. python -m benchmarks.locomotion_training --out DIR [--game hopper] [--updates 50] [--seeds 3]
        [--episodes 30]

The same agent, hyperparameters and seeds on both physics (float32), 2,048 control steps an update; the seeds of one
physics are one program. Then every agent plays on both: what was learned on the one must hold on the other. Writes
DIR/locomotion_training.png and prints a Markdown table: means over the seeds and the difference, paired by seed.
"""

from __future__ import annotations

import argparse
import pathlib
import time
from importlib.metadata import version

import jax
import numpy as np

import envs
from launch.reproduce_ultra import PPO
from nlrl_jax.algorithms import ppo
from nlrl_jax.rollouts.control import evaluate
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.statistics import estimate, header, paired
from nlrl_jax.types import ControlGame

PHYSICS = ("c", "mjx")


def train(game: ControlGame, updates: int, seeds: int, name: str) -> tuple[ppo.PPOState, np.ndarray, float]:
    """(the agents, mean returns of the episodes that ended in each update [seeds, updates], seconds an update)."""
    config = PPO[game.name]
    keys = jax.random.split(jax.random.key(0), seeds)
    state = jax.jit(jax.vmap(lambda key: ppo.init_state(game.env, game.params, config, key)))(keys)
    update = jax.jit(jax.vmap(ppo.make_update(game.env, game.params, config)), donate_argnums=0)
    returns, start = [], time.perf_counter()
    for n in range(updates):
        state, metrics = update(state, jax.vmap(lambda key: jax.random.fold_in(key, n))(keys))
        returns.append(np.where(metrics["episodes"] > 0, metrics["env_return"], np.nan))
        start = time.perf_counter() if n == 0 else start  # compiling does not count
        if n % 10 == 9:
            print(f"{name}: {n + 1} updates, return {np.nanmean(returns[-1]):.0f}", flush=True)
    return state, np.array(returns).T, (time.perf_counter() - start) / max(updates - 1, 1)


def scores(game: ControlGame, state: ppo.PPOState, episodes: int) -> np.ndarray:
    """Mean returns of the agents: [seeds]."""
    config, key = PPO[game.name], jax.random.key(1)
    play = lambda params, moments: evaluate(
        game.env, game.params, ppo.agent_of(game.env, game.params, config), params, moments, key, episodes
    )[0]
    return np.asarray(jax.jit(jax.vmap(play))(state.params, state.obs_moments)).mean(axis=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--game", choices=("hopper", "walker2d", "ant"), default="hopper")
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=30, help="of an agent on each physics afterwards")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    games = {physics: envs.make_control(arguments.game, physics=physics) for physics in PHYSICS}
    trained = {name: train(game, arguments.updates, arguments.seeds, name) for name, game in games.items()}

    steps = 2048 * np.arange(1, arguments.updates + 1)
    curves = [Series(f"trained on {name}", steps, returns) for name, (_, returns, _) in trained.items()]
    picture = compare(
        {arguments.game: curves}, arguments.out / "locomotion_training.png", "environment steps", "return in training"
    )
    print(
        f"{jax.devices()[0].device_kind}; jax {version('jax')}, mujoco {version('mujoco')}, {version('mujoco-mjx')}\n"
    )
    print(f"{header('seeds of training', arguments.seeds)}\n")
    print("| trained on | return, last fifth of training | played on c | played on mjx | seconds an update |")
    print("|---|---|---|---|---|")
    lasts = []
    for name, (state, returns, seconds) in trained.items():
        last = np.nanmean(returns[:, -max(arguments.updates // 5, 1) :], axis=1)
        found = [last, *(scores(games[physics], state, arguments.episodes) for physics in PHYSICS)]
        lasts.append(last)
        cells = [estimate(x).text(".0f") for x in found]
        print(f"| {name} | {' | '.join(cells)} | {seconds:.2f} |", flush=True)
    difference = paired(*lasts)
    print(f"\nlast fifth, {' - '.join(PHYSICS)}, paired by seed: {difference.text('+.0f')}: {difference.verdict}")
    print(f"\n{picture}")


if __name__ == "__main__":
    main()
