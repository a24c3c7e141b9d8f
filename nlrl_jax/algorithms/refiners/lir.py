"""LIR: learning intrinsic rewards for policy gradient (Zheng, Oh and Singh 2018, algorithm 1, in its PPO form).

    state = base.replace(aux=init(key, env, env_params, config, base, lir_config))
    update = make_update(env, env_params, config, lir_config)          # (PPOState, key) -> (PPOState, metrics)

A network eta pays r_in(s, a) in (-1, 1). The policy theta and its critic learn from r_ex + lambda r_in by PPO; eta
learns from the effect of that on the environment's reward alone. For every minibatch,

    theta' = theta - Adam(grad_theta of PPO's loss with advantages of r_ex + lambda r_in_eta)
    eta    moves along grad_eta of PPO's clipped objective of theta' with advantages of r_ex

by the chain rule through theta'. Advantages of r_ex come from a critic of their own, which learns at eta's rate. The
policy's rate is `PPOConfig.learning_rate` (3e-4 in the authors' code), eta's is 1e-4.

Departures and choices:
- As in the authors' code, Adam's second moment is a constant of the chain rule (else the first steps, which are near
  sign(gradient), would have no derivative), the clipping of the gradient's norm is not, and the same minibatch
  serves the policy and eta.
- lambda is 0.01 by default: our choice, not checked against the paper.
- The critic of r_ex starts as the agent's critic, which is that of r_ex when a refinement begins.
- No clipping of values, and `normalize_reward` scales r_ex before r_in is added.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from nlrl_jax import networks
from nlrl_jax.algorithms import ppo
from nlrl_jax.algorithms.ppo import PPOConfig, PPOState
from nlrl_jax.arrays import flat_steps
from nlrl_jax.config import check, option
from nlrl_jax.networks import Agent

_B1, _B2, _EPS = 0.9, 0.999, 1e-5  # of Adam in `ppo.optimizer`


@dataclasses.dataclass(frozen=True)
class LIRConfig:
    """Hyperparameters of LIR."""

    coefficient: float = option(0.01, "lambda, the weight of r_in", least=0)
    learning_rate: float = option(1e-4, "learning rate of eta and of the critic of r_ex", least=0)
    features: tuple[int, ...] = (64, 64)  # widths of the hidden layers of eta

    def __post_init__(self):
        check(self)


@flax.struct.dataclass
class LIRState:
    """params: {"reward" (eta), "critic" (of r_ex)}. opt_state: of both."""

    params: Any
    opt_state: Any


def init(
    key: jax.Array, env: Any, env_params: Any, config: PPOConfig, state: PPOState, lir_config: LIRConfig = LIRConfig()
) -> LIRState:
    """What `PPOState.aux` must be: a fresh eta, and a copy of the agent's critic."""
    agent = ppo.agent_of(env, env_params, config)
    action = networks.mode(*agent.policy(state.params, state.obs_moments, state.obs))
    x = reward_input(agent, state.obs_moments, state.obs, action)
    params = {"reward": reward_network(lir_config).init(key, x)["params"], "critic": state.params["critic"]}
    return LIRState(params, _reward_optimizer(config, lir_config).init(params))


def reward_network(lir_config: LIRConfig) -> Any:
    """rows [N, ...] -> [N, 1], before the last tanh."""
    return networks.tower(lir_config.features, 1, 1.0, "reward")


def reward_input(agent: Agent, moments: Any, obs: jax.Array, action: jax.Array) -> jax.Array:
    """Normalised observations [N, ...] and actions [N] (one-hot) or [N, A] (raw), as rows."""
    normalized = moments.normalize(obs) if agent.normalize_obs else obs
    action = action if agent.continuous else jax.nn.one_hot(action, agent.actor.num_outputs)
    return jnp.concatenate([normalized.reshape(obs.shape[0], -1), action], axis=-1)


def intrinsic_reward(params: Any, x: jax.Array, lir_config: LIRConfig) -> jax.Array:
    """r_in of the rows of `reward_input`: [N, D] -> [N] in (-1, 1). params: eta."""
    return jnp.tanh(reward_network(lir_config).apply({"params": params}, x)[:, 0])


def traced(rewards: jax.Array, discount: float, trace_decay: float, ends: jax.Array) -> jax.Array:
    """sum_k (gamma lambda)^k r_{t+k} up to the episode's end: what rewards [T, B] add to GAE, which is linear in them.

    ends: bool [T, B], step t was its episode's last one.
    """

    def back(later, step):
        reward, end = step
        total = reward + jnp.where(end, 0.0, discount * trace_decay) * later
        return total, total

    return jax.lax.scan(back, jnp.zeros_like(rewards[0]), (rewards, ends), reverse=True)[1]


def adam_step(config: PPOConfig, params: Any, opt_state: Any, grads: Any) -> tuple[Any, Any]:
    """`ppo.optimizer`'s step, differentiable in `grads` with Adam's second moment held fixed: (params, opt_state)."""
    # The values are those of the real step; only the derivative of the update by its gradient is written by hand.
    fixed = jax.lax.stop_gradient(grads)
    updates, opt_state = ppo.optimizer(config).update(fixed, opt_state, params)
    adam = optax.tree.get(opt_state, "ScaleByAdamState")
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    clipped = clip.update(grads, clip.init(params))[0]
    count = adam.count.astype(jnp.float32)
    # d update / d grad = -rate * (1 - b1) / (1 - b1^t) / (sqrt(nu_hat) + eps), with nu held fixed.
    scale = ppo.learning_rate(config)(adam.count - 1) * (1 - _B1) / (1 - _B1**count)

    def through(update, grad, nu):
        slope = -scale / (jnp.sqrt(nu / (1 - _B2**count)) + _EPS)
        # Adds 0, but its derivative is `slope`.
        return update + slope * (grad - jax.lax.stop_gradient(grad))

    return optax.apply_updates(params, jax.tree.map(through, updates, clipped, adam.nu)), opt_state


def meta_loss(
    agent: Agent,
    config: PPOConfig,
    lir_params: Any,
    params: Any,
    opt_state: Any,
    moments: Any,
    batch: dict[str, jax.Array],
    added: Callable[[Any], jax.Array],
) -> tuple[jax.Array, Any]:
    """What eta and its critic minimise: the clipped loss by r_ex of the policy after one step on r_ex + lambda r_in.

    Args:
      lir_params: {"reward", "critic"}.
      params, opt_state: of the agent, before the step.
      batch: [N] each: obs, action, old_log_probs; base, base_targets: advantages and value targets of r_ex under the
        agent's critic; extrinsic, extrinsic_targets: under the critic of r_ex.
      added: eta -> [N], what r_in adds to `base` and `base_targets`.

    Returns: (loss, ((params, opt_state) after the step, the metrics of the step's loss)).
    """
    # 1. The agent's step on r_ex + lambda r_in, as a function of eta.
    intrinsic = added(lir_params["reward"])
    mixed = {**batch, "advantages": batch["base"] + intrinsic, "targets": batch["base_targets"] + intrinsic}
    grads, metrics = jax.grad(lambda p: mixed_loss(agent, config, p, moments, mixed), has_aux=True)(params)
    after = adam_step(config, params, opt_state, grads)
    # 2. How good the stepped policy is by r_ex alone: the gradient of this reaches eta through the step.
    policy_loss = _policy_loss(agent, config.clip, after[0], moments, batch, batch["extrinsic"])[0]
    values = agent.value({"critic": lir_params["critic"]}, moments, batch["obs"])
    value_loss = jnp.mean((values - batch["extrinsic_targets"]) ** 2)
    return policy_loss + config.value_coef * value_loss, jax.lax.stop_gradient((after, metrics))


def make_update(
    env: Any, env_params: Any, config: PPOConfig, lir_config: LIRConfig = LIRConfig()
) -> Callable[..., Any]:
    """A pure `update(state, key) -> (state, metrics)`; `state.aux` is a `LIRState`.

    Metrics: those of `ppo.make_update`, and "intrinsic_reward" (mean), "intrinsic_spread" (its deviation),
    "extrinsic_loss", "reward_grad_norm" (of eta). The state is new even where "finite" is 0.

    Raises:
      ValueError: `config` clips values, which LIR here does not.
    """
    if math.isfinite(config.value_clip):
        raise ValueError(f"value_clip is {config.value_clip}; LIR does not clip values, so it must be inf")
    agent, collect = ppo.agent_of(env, env_params, config), ppo.make_collect(env, env_params, config)
    tx = _reward_optimizer(config, lir_config)

    def update(state: PPOState, key: jax.Array) -> tuple[PPOState, dict[str, jax.Array]]:
        key_collect, key_learn = jax.random.split(key)
        state, steps = collect(state, key_collect)
        moments, rewards, done = state.obs_moments, steps.reward, steps.done
        if config.normalize_reward:
            state, rewards = ppo.scale_rewards(state, rewards, done, config.discount)
        # With r_in = 0 the advantages of the mixed critic; r_in comes in where it can be differentiated.
        base, base_targets = ppo.advantages_of(agent, config, state.params, moments, steps, rewards)
        agent_params = {**state.params, "critic": state.aux.params["critic"]}
        extrinsic, extrinsic_targets = ppo.advantages_of(agent, config, agent_params, moments, steps, rewards)
        obs, action = flat_steps(steps.obs), flat_steps(steps.action)
        x = reward_input(agent, moments, obs, action)
        data = {
            "obs": obs,
            "action": action,
            "old_log_probs": networks.log_prob(*agent.policy(state.params, moments, obs), action),
            "base": flat_steps(base),
            "base_targets": flat_steps(base_targets),
            "extrinsic": flat_steps(extrinsic),
            "extrinsic_targets": flat_steps(extrinsic_targets),
        }

        def added(eta):
            """What r_in adds to each step's advantage and value target: [N]."""
            paid = intrinsic_reward(eta, x, lir_config).reshape(rewards.shape)
            return lir_config.coefficient * flat_steps(traced(paid, config.discount, config.trace_decay, done))

        def minibatch(carry, index):
            params, opt_state, lir = carry
            batch = jax.tree.map(lambda leaf: leaf[index], data)

            (loss, ((params, opt_state), metrics)), grads = jax.value_and_grad(
                lambda p: meta_loss(agent, config, p, params, opt_state, moments, batch, lambda eta: added(eta)[index]),
                has_aux=True,
            )(lir.params)
            updates, lir_opt_state = tx.update(grads, lir.opt_state, lir.params)
            lir = LIRState(optax.apply_updates(lir.params, updates), lir_opt_state)
            metrics = {**metrics, "extrinsic_loss": loss, "reward_grad_norm": optax.tree.norm(grads["reward"])}
            return (params, opt_state, lir), metrics

        # [epochs * minibatches, size]: one scan over all gradient steps.
        orders = jax.vmap(lambda k: jax.random.permutation(k, rewards.size))(jax.random.split(key_learn, config.epochs))
        index = orders.reshape(config.epochs * config.num_minibatches, -1)
        paid = intrinsic_reward(state.aux.params["reward"], x, lir_config)
        carry = (state.params, state.opt_state, state.aux)
        (params, opt_state, lir), metrics = jax.lax.scan(minibatch, carry, index)
        state = state.replace(params=params, opt_state=opt_state, aux=lir, iteration=state.iteration + 1)
        if config.normalize_obs:
            state = state.replace(obs_moments=moments.update(steps.obs))
        metrics = jax.tree.map(jnp.mean, metrics)
        sound = jnp.isfinite(metrics["policy_loss"]) & jnp.isfinite(metrics["value_loss"])
        sound &= jnp.isfinite(metrics["reward_grad_norm"]) & jnp.isfinite(metrics["extrinsic_loss"])
        paid = {"intrinsic_reward": jnp.mean(paid), "intrinsic_spread": jnp.std(paid)}
        return state, {**metrics, **ppo.episode_metrics(steps), **paid, "finite": sound}

    return update


def mixed_loss(
    agent: Agent, config: PPOConfig, params: Any, moments: Any, batch: dict[str, jax.Array]
) -> tuple[jax.Array, Any]:
    """`ppo.surrogate`, but gradients also flow through advantages and targets: (loss, metrics)."""
    policy_loss, entropy, ratio = _policy_loss(agent, config.clip, params, moments, batch, batch["advantages"])
    value_loss = jnp.mean((agent.value(params, moments, batch["obs"]) - batch["targets"]) ** 2)
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "clip_fraction": jnp.mean(jnp.abs(ratio - 1.0) > config.clip),
        "approx_kl": jnp.mean(ratio - 1.0 - jnp.log(ratio)),
    }
    return policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy, metrics


def _policy_loss(agent, clip, params, moments, batch, advantages):
    """(PPO's clipped loss [], entropy [], ratio [N]) with advantages normalised within the minibatch."""
    out = agent.policy(params, moments, batch["obs"])
    ratio = jnp.exp(networks.log_prob(*out, batch["action"]) - batch["old_log_probs"])
    centred = advantages - jnp.mean(advantages)
    variance = jnp.mean(centred**2)
    # The root has no derivative at 0, where all advantages are equal.
    std = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
    A = centred / (std + 1e-8)
    clipped = jnp.clip(ratio, 1.0 - clip, 1.0 + clip)
    return -jnp.mean(jnp.minimum(ratio * A, clipped * A)), jnp.mean(networks.entropy(*out)), ratio


def _reward_optimizer(config, lir_config):
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(lir_config.learning_rate, eps=_EPS))
