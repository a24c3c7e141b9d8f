"""stable-baselines3's PPO for `benchmarks.ppo`, in an environment of its own (torch). One run, one line of JSON.

    python benchmarks/peers/sb3.py CartPole-v1 500000 0 '{"n_steps": 128}' [--envs 4]

`seconds` is that of `learn` alone. `returns`: of the training's episodes (Monitor), in the order they ended.
`greedy`, `sampled`: of 100 episodes each afterwards. `{"anneal": true}` lets the learning rate fall linearly to 0.
"""

from __future__ import annotations

import argparse
import functools
import json
import operator
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("game")
    parser.add_argument("steps", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("options", type=json.loads)
    parser.add_argument("--envs", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    options = dict(arguments.options)
    if options.pop("anneal", False):
        options["learning_rate"] = functools.partial(
            operator.mul, options["learning_rate"]
        )  # by the share that remains
    env = make_vec_env(arguments.game, n_envs=arguments.envs, seed=arguments.seed)
    model = PPO("MlpPolicy", env, seed=arguments.seed, device="cpu", **options)
    start = time.perf_counter()
    model.learn(arguments.steps)
    seconds = time.perf_counter() - start
    ended = zip(env.env_method("get_episode_times"), env.env_method("get_episode_rewards"))
    returns = [value for _, value in sorted(pair for times, rewards in ended for pair in zip(times, rewards))]
    fresh = make_vec_env(arguments.game, n_envs=20, seed=1000 + arguments.seed)
    after = {
        name: float(evaluate_policy(model, fresh, 100, deterministic=name == "greedy")[0])
        for name in ("greedy", "sampled")
    }
    print(json.dumps({"seconds": seconds, "steps": model.num_timesteps, "returns": returns, **after}))


if __name__ == "__main__":
    main()
