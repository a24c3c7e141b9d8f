"""Rewards designed by people (the baseline HLC of ULTRA, section 4.1), added to the environment's.

    update = ppo.make_update(env, env_params, config, hooks(envs.human_rewards.pong_return, 0.1))

ULTRA names two: in Pong the agent is paid when its racket returns the ball, in Ant when it has got a stretch further
(`envs/human_rewards.py`). The paper gives neither formulas nor a weight; both are ours, and the weight is an argument.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from nlrl_jax.algorithms.ppo import Hooks, Transitions


def hooks(reward: Callable[[Transitions], jax.Array], coefficient: float = 1.0) -> Hooks:
    """A reward by hand as a hook of PPO; `aux` is left alone.

    Args:
      reward: steps (obs, action, next_obs, info, ... [T, B]) -> float [T, B].

    Metrics: "human_reward" (mean, unweighted) and "human_rewarded" (share of steps where it is not 0).

    Raises:
      ValueError: while traced, where the reward has another shape than the environment's.
    """

    def bonus(aux, steps, obs_moments):
        del obs_moments
        given = reward(steps)
        if given.shape != steps.reward.shape:
            raise ValueError(f"the reward has shape {given.shape}; it must be {steps.reward.shape}: a number a step")
        return coefficient * given, aux, {"human_reward": jnp.mean(given), "human_rewarded": jnp.mean(given != 0)}

    return Hooks(bonus=bonus)
