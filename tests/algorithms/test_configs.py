"""Settings that make no sense are refused by name, before anything is computed."""

import functools
import math

import pytest

from nlrl_jax.algorithms.dqn import DQNConfig
from nlrl_jax.algorithms.language_actor_critic import ActorCriticConfig
from nlrl_jax.algorithms.language_gpi import GPIConfig
from nlrl_jax.algorithms.language_ppo import LanguagePPOConfig
from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig
from nlrl_jax.algorithms.ppo import PPOConfig
from nlrl_jax.algorithms.sft import SFTConfig
from nlrl_jax.algorithms.ultra import GuidanceConfig
from nlrl_jax.envs.tic_tac_toe.prompts import roles

DQN = functools.partial(DQNConfig, buffer_size=400, num_envs=10)
PPO = functools.partial(PPOConfig, num_envs=4, num_steps=8, num_minibatches=2)


@pytest.mark.parametrize(
    "config, wrong, message",
    [
        (MSGRPOConfig, {"group_size": 1, "group_sample": 1}, "group_size is 1"),
        (MSGRPOConfig, {"group_size": 4, "group_sample": 5}, r"group_sample \(G'\) is 5; .* group_size \(G\) = 4"),
        (MSGRPOConfig, {"group_sample": 1}, r"group_sample \(G'\) is 1"),
        (MSGRPOConfig, {"sampling_temperature": -1.0}, "sampling_temperature is -1.0"),
        (MSGRPOConfig, {"kl_estimator": "k4"}, "kl_estimator is 'k4'; choose one of k1, k2, k3"),
        (MSGRPOConfig, {"clip_low": -0.1}, "clip_low is -0.1; it must be at least 0 and at most 1"),
        (MSGRPOConfig, {"clip_high": -0.1}, "clip_high is -0.1"),
        (MSGRPOConfig, {"beta": -1.0}, "beta is -1.0"),
        (MSGRPOConfig, {"learning_rate": -1.0}, "learning_rate is -1.0"),
        (MSGRPOConfig, {"learning_rate": math.nan}, "learning_rate is nan"),
        (MSGRPOConfig, {"std_ddof": 25}, "std_ddof is 25; it must be below the 25 episodes"),
        (MSGRPOConfig, {"std_ddof": 100, "sampling_temperature": 0.0}, "std_ddof is 100; .* below the 100 episodes"),
        (MSGRPOConfig, {"num_groups": 0}, "num_groups is 0"),
        (MSGRPOConfig, {"max_turns": 0}, "max_turns is 0"),
        (MSGRPOConfig, {"max_steps": 0}, "max_steps is 0"),
        (MSGRPOConfig, {"updates_per_batch": 0}, "updates_per_batch is 0"),
        (MSGRPOConfig, {"probe": 1}, "probe is 1; it must be 0, or at least 2"),
        (PPO, {"num_minibatches": 3}, "3 minibatches"),
        (PPO, {"num_minibatches": 32}, "32 minibatches of equally many steps, at least two: advantages are normalised"),
        (PPO, {"num_envs": 1, "num_steps": 1, "num_minibatches": 1}, "1 environments x 1 steps do not divide"),
        (PPO, {"num_envs": 0}, "num_envs is 0"),
        (PPO, {"clip": -0.2}, "clip is -0.2"),
        (PPO, {"features": (64, 0)}, r"features is \(64, 0\)"),
        (PPO, {"features": (64.0,)}, r"features is \(64.0,\)"),
        (PPO, {"discount": 1.5}, "1.5"),
        (PPO, {"value_clip": 0.0}, "value_clip is 0"),
        (DQN, {"buffer_size": 405}, "buffer_size 405 is not a multiple of num_envs 10"),
        (DQN, {"learning_starts": 401}, "learning_starts 401 never comes"),
        (DQN, {"discount": 1.0}, "discount is 1.0"),
        (DQN, {"epsilon_end": 1.5}, "epsilon_end is 1.5"),
        (DQN, {"batch_size": 0}, "batch_size is 0"),
        (LanguagePPOConfig, {"train": "all"}, "'all'.*params, lora"),
        (LanguagePPOConfig, {"num_games": 0}, "num_games is 0"),
        (LanguagePPOConfig, {"num_games": 1, "max_turns": 1}, "advantages are normalised over its moves, at least two"),
        (LanguagePPOConfig, {"temperature": 0.0}, "temperature is 0.0"),
        (LanguagePPOConfig, {"actor_learning_rate": -1.0}, "actor_learning_rate is -1.0"),
        (LanguagePPOConfig, {"discount": 1.1}, "discount is 1.1"),
        (LanguagePPOConfig, {"value_coef": math.nan}, "value_coef is nan"),
        (SFTConfig, {"schedule": "linear"}, "schedule is 'linear'; choose one of constant, cosine"),
        (SFTConfig, {"warmup": 1.0}, "warmup is 1.0"),
        (SFTConfig, {"epochs": 0}, "epochs is 0; it must be at least 1"),
        (SFTConfig, {"train": "all"}, "train is 'all'"),
        (ActorCriticConfig, {"estimate": "dp"}, "estimate is 'dp'; choose one of mc, td"),
        (ActorCriticConfig, {"k": 0}, "k is 0; it must be at least 1"),
        (ActorCriticConfig, {"num_values": 2}, "num_values is 2, but at temperature 0"),
        (roles, {"style": "short"}, "style is 'short'; choose one of paper, paper_zero_shot, compact"),
        (GPIConfig, {"look_ahead": -1}, "is -1"),
        (GPIConfig, {"variations": 0}, "is 0"),
        (GuidanceConfig, {"radius": 0.0}, "radius is"),
        (GuidanceConfig, {"step": 0.0}, "step is"),
        (GuidanceConfig, {"advice": "torque"}, "advice is"),
        (GuidanceConfig, {"floor": math.nan}, "floor is"),
        (GuidanceConfig, {"floor": math.inf}, "floor is"),
        (GuidanceConfig, {"alpha": -0.5}, "alpha is"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config, wrong, message):
    with pytest.raises(ValueError, match=message):
        config(**wrong)


def test_without_aaw_sampling_group_sample_does_not_matter():
    MSGRPOConfig(group_size=4, sampling_temperature=0.0)
