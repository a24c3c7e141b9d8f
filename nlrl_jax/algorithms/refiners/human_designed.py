"""Hand-designed rewards (the baseline HLC of ULTRA, section 4.1), added to the environment's.

    update = ppo.make_update(env, env_params, config, hooks(game.human_reward, 0.1))

ULTRA names two: Pong pays for a returned ball (`envs.pong.env.pong_return`), Ant for progress
(`envs.locomotion.env.progress_bonus`). The paper gives neither formulas nor a weight; both are ours.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from nlrl_jax.algorithms.ppo import Hooks, Transitions


def hooks(reward: Callable[[Transitions], jax.Array], coefficient: float = 1.0) -> Hooks:
    """A hand-designed reward as a hook of PPO; `aux` is unchanged.

    Args:
      reward: steps (obs, action, next_obs, info, ... [T, B]) -> float [T, B].

    Metrics: "human_reward" (mean, unweighted) and "human_rewarded" (share of steps where it is not 0).

    Raises:
      ValueError: while traced, where the reward has another shape than the environment's.
    """

    def bonus(aux, steps, obs_moments):
        del obs_moments
        extra = reward(steps)
        if extra.shape != steps.reward.shape:
            raise ValueError(f"the reward has shape {extra.shape}; it must be {steps.reward.shape}: a number per step")
        return coefficient * extra, aux, {"human_reward": jnp.mean(extra), "human_rewarded": jnp.mean(extra != 0)}

    return Hooks(bonus=bonus)
