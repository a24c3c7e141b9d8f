"""Settings that make no sense are refused by name, before anything is computed."""

import dataclasses
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
        (MSGRPOConfig, {"group_size": 4, "group_sample": 5}, r"group_sample \(G'\) is 5; .* group_size \(G\) = 4"),
        (MSGRPOConfig, {"group_sample": 1}, r"group_sample \(G'\) is 1"),
        (MSGRPOConfig, {"kl_estimator": "k4"}, "kl_estimator is 'k4'; choose one of k1, k2, k3"),
        (MSGRPOConfig, {"clip_low": -0.1}, "clip_low is -0.1; it must be at least 0 and at most 1"),
        (MSGRPOConfig, {"std_ddof": 25}, "std_ddof is 25; it must be below the 25 episodes"),
        (MSGRPOConfig, {"std_ddof": 100, "sampling_temperature": 0.0}, "std_ddof is 100; .* below the 100 episodes"),
        (MSGRPOConfig, {"probe": 1}, "probe is 1; it must be 0, or at least 2"),
        (PPO, {"num_minibatches": 3}, "3 minibatches"),
        (PPO, {"num_minibatches": 32}, "32 minibatches of equally many steps, at least two: advantages are normalised"),
        (PPO, {"num_envs": 1, "num_steps": 1, "num_minibatches": 1}, "1 environments x 1 steps do not divide"),
        (PPO, {"features": (64, 0)}, r"features is \(64, 0\)"),
        (PPO, {"features": (64.0,)}, r"features is \(64.0,\)"),
        (DQN, {"buffer_size": 405}, "buffer_size 405 is not a multiple of num_envs 10"),
        (DQN, {"learning_starts": 401}, "learning_starts 401 never comes"),
        (LanguagePPOConfig, {"train": "all"}, "'all'.*params, lora"),
        (LanguagePPOConfig, {"num_games": 1, "max_turns": 1}, "advantages are normalised over its moves, at least two"),
        (SFTConfig, {"schedule": "linear"}, "schedule is 'linear'; choose one of constant, cosine"),
        (SFTConfig, {"train": "all"}, "train is 'all'"),
        (ActorCriticConfig, {"estimate": "dp"}, "estimate is 'dp'; choose one of mc, td"),
        (ActorCriticConfig, {"num_values": 2}, "num_values is 2, but at temperature 0"),
        (roles, {"style": "short"}, "style is 'short'; choose one of paper, paper_zero_shot, compact"),
        (GuidanceConfig, {"advice": "torque"}, "advice is"),
        (GuidanceConfig, {"floor": math.nan}, "floor is"),
        (GuidanceConfig, {"floor": math.inf}, "floor is"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config, wrong, message):
    with pytest.raises(ValueError, match=message):
        config(**wrong)


CONFIGS = (MSGRPOConfig, PPOConfig, DQNConfig, LanguagePPOConfig, SFTConfig, ActorCriticConfig, GPIConfig)
# Other fields bound the first; the others may be negative.
UNBOUNDED = {"group_sample", "entropy_coef", "floor", "invalid_action_reward"}


@pytest.mark.parametrize("config", [*CONFIGS, GuidanceConfig])
def test_every_number_has_a_least_value(config):
    numbers = [field for field in dataclasses.fields(config) if field.type in ("int", "float") and field.metadata]
    bare = {field.name for field in numbers if field.metadata["least"] is None and field.metadata["above"] is None}
    assert numbers and bare <= UNBOUNDED


def test_without_aaw_sampling_group_sample_does_not_matter():
    MSGRPOConfig(group_size=4, sampling_temperature=0.0)
