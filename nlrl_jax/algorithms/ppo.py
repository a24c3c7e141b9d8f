"""Proximal policy optimisation (Schulman et al. 2017) for agents with numeric observations, as one pure function.

    state = init_state(env, env_params, config, key)
    update = jax.jit(make_update(env, env_params, config))
    state, metrics = update(state, key)            # num_envs * num_steps environment steps, then the gradient steps

`jax.vmap` over states and keys trains several seeds as one program. An update has two halves, `collect` and `learn`;
`Hooks` change what happens between them, which is what ULTRA and the refiners it is compared with do.

Differences from common implementations: observations are stored raw and normalised by statistics that change only
between updates, so that the log-probabilities of an update are those of its rollout; a truncated episode bootstraps
from its last state, not from the one after the reset; values are not clipped, unless `value_clip` is finite.
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

from nlrl_jax import losses, networks, returns
from nlrl_jax.arrays import flat_steps
from nlrl_jax.config import check, option
from nlrl_jax.networks import Agent, RunningMoments
from nlrl_jax.updates import where

Minibatch = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    """Hyperparameters of PPO."""

    num_envs: int = option(16, "environments side by side", least=1)
    num_steps: int = option(128, "steps of each environment per update", least=1)
    epochs: int = option(4, "passes over the steps of an update", least=1)
    num_minibatches: int = option(4, "minibatches per pass", least=1)
    learning_rate: float = option(2.5e-4, "Adam's learning rate", least=0)
    anneal: int = option(0, "updates over which the learning rate falls linearly to 0; 0 keeps it constant", least=0)
    discount: float = option(0.99, "gamma", least=0, most=1)
    trace_decay: float = option(0.95, "lambda of generalised advantage estimation", least=0, most=1)
    clip: float = option(0.2, "epsilon of the clipped ratio", above=0)
    value_coef: float = option(0.5, "weight of the value loss", least=0)
    entropy_coef: float = option(0.01, "weight of the entropy bonus")
    max_grad_norm: float = option(0.5, "bound on the gradient's norm", above=0)
    value_clip: float = option(math.inf, "clip range of a value's change; inf: none", above=0, infinite=True)
    normalize_obs: bool = option(True, "normalise observations by running statistics")
    normalize_reward: bool = option(True, "divide rewards by the running deviation of discounted returns")
    features: tuple[int, ...] = (64, 64)  # widths of the hidden layers of both networks

    def __post_init__(self):
        check(self)
        if not all(isinstance(width, int) and width > 0 for width in self.features):
            raise ValueError(f"features is {self.features}; it must be widths of layers, whole numbers of at least 1")
        size, rest = divmod(self.num_envs * self.num_steps, self.num_minibatches)
        if rest or size < 2:
            raise ValueError(
                f"{self.num_envs} environments x {self.num_steps} steps do not divide into {self.num_minibatches} "
                "minibatches of equally many steps, at least two: advantages are normalised within each"
            )


@flax.struct.dataclass
class PPOState:
    """The whole state of a run.

    params: {"actor", "critic"}. obs_moments, return_moments: running statistics. env_state, obs: of `num_envs` games.
    discounted, episode_return, episode_steps: [B], of the current episode. aux: of the hooks. iteration: updates.
    """

    params: Any
    opt_state: Any
    obs_moments: RunningMoments
    return_moments: RunningMoments
    env_state: Any
    obs: jax.Array
    discounted: jax.Array
    episode_return: jax.Array
    episode_steps: jax.Array
    aux: Any
    iteration: jax.Array

    def learned(self) -> dict[str, Any]:
        """What a checkpoint holds: all of it, so that a resumed run is the same run."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@flax.struct.dataclass
class Transitions:
    """Steps [T, B]. obs, next_obs: raw, the latter before any reset. action: as executed.

    replaced: a hook replaced the action. info: the environment's. finished_return, finished_steps: of the episode that
    ended here, else 0.
    """

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    next_obs: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    replaced: jax.Array
    info: dict[str, jax.Array]
    finished_return: jax.Array
    finished_steps: jax.Array

    @property
    def done(self) -> jax.Array:
        return self.terminated | self.truncated


@dataclasses.dataclass(frozen=True)
class Hooks:
    """Where a method changes PPO. `aux` is `PPOState.aux`; all are pure.

    Attributes:
      act: (aux, obs [B], action [B]) -> (the executed action, bool [B] where it was replaced).
      bonus: (aux, transitions, obs_moments) -> (an addition to the rewards [T, B], new aux, metrics).
      advantage: (normalised advantages [N], minibatch) -> advantages [N]; see `surrogate`.
      reset: (aux, key, obs, env_state) of one fresh episode -> its initial (obs, env_state).
    """

    act: Callable[[Any, jax.Array, jax.Array], tuple[jax.Array, jax.Array]] | None = None
    bonus: Callable[[Any, Transitions, RunningMoments], tuple[jax.Array, Any, dict[str, jax.Array]]] | None = None
    advantage: Callable[[jax.Array, Minibatch], jax.Array] | None = None
    reset: Callable[[Any, jax.Array, jax.Array, Any], tuple[jax.Array, Any]] | None = None


def agent_of(env: Any, env_params: Any, config: PPOConfig) -> Agent:
    """The networks that `config` describes for an environment."""
    return Agent(env, env_params, config.features, config.normalize_obs)


def learning_rate(config: PPOConfig) -> optax.Schedule:
    """Gradient steps done -> Adam's learning rate."""
    steps = config.anneal * config.epochs * config.num_minibatches
    return optax.linear_schedule(config.learning_rate, 0.0, steps)  # constant over 0 steps


def optimizer(config: PPOConfig) -> optax.GradientTransformation:
    """Adam on gradients of bounded norm."""
    rate = learning_rate(config) if config.anneal else config.learning_rate  # a schedule's state counts its steps
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(rate, eps=1e-5))


def init_state(env: Any, env_params: Any, config: PPOConfig, key: jax.Array, aux: Any = None) -> PPOState:
    """Fresh networks and `num_envs` new games."""
    key_net, key_env = jax.random.split(key)
    obs, env_state = jax.vmap(env.reset_env, in_axes=(0, None))(jax.random.split(key_env, config.num_envs), env_params)
    params = agent_of(env, env_params, config).init(key_net, obs)
    zeros = jnp.zeros(config.num_envs)
    return PPOState(
        params=params,
        opt_state=optimizer(config).init(params),
        obs_moments=RunningMoments.of(obs.shape[1:]),
        return_moments=RunningMoments.of(),
        env_state=env_state,
        obs=obs,
        discounted=zeros,
        episode_return=zeros,
        episode_steps=jnp.zeros(config.num_envs, jnp.int32),
        aux=aux,
        iteration=jnp.zeros((), jnp.int32),
    )


def make_collect(env: Any, env_params: Any, config: PPOConfig, hooks: Hooks = Hooks()) -> Callable[..., Any]:
    """A pure `collect(state, key) -> (state, Transitions)`: `num_steps` steps in each environment."""
    agent, n = agent_of(env, env_params, config), config.num_envs
    reset_env, is_truncated = (jax.vmap(method, in_axes=(0, None)) for method in (env.reset_env, env.is_truncated))
    step_env = jax.vmap(env.step_env, in_axes=(0, 0, 0, None))

    def collect(state: PPOState, key: jax.Array) -> tuple[PPOState, Transitions]:
        def step(carry, key):
            env_state, obs, total, steps = carry
            key_act, key_step, key_reset, key_start = jax.random.split(key, 4)
            action = networks.sample(key_act, *agent.policy(state.params, state.obs_moments, obs))
            replaced = jnp.zeros(n, bool)
            if hooks.act:
                action, replaced = hooks.act(state.aux, obs, action)
            # The raw action is stored, whose log-probability is known; the one within the bounds is played.
            next_obs, next_state, reward, terminated, info = step_env(
                jax.random.split(key_step, n), env_state, agent.to_env(action), env_params
            )
            truncated = is_truncated(next_state, env_params) & ~terminated
            done = terminated | truncated
            total, steps = total + reward, steps + 1
            # All environments are reset in every step, and the fresh state is taken where an episode is over.
            fresh_obs, fresh_state = reset_env(jax.random.split(key_reset, n), env_params)
            if hooks.reset:
                start = jax.vmap(hooks.reset, in_axes=(None, 0, 0, 0))
                fresh_obs, fresh_state = start(state.aux, jax.random.split(key_start, n), fresh_obs, fresh_state)
            # Return and length are recorded in the step that ends an episode.
            finished = jnp.where(done, total, 0.0), jnp.where(done, steps, 0)
            transition = Transitions(obs, action, reward, next_obs, terminated, truncated, replaced, info, *finished)
            env_state, obs = where(done, (fresh_state, fresh_obs), (next_state, next_obs))
            return (env_state, obs, jnp.where(done, 0.0, total), jnp.where(done, 0, steps)), transition

        start = (state.env_state, state.obs, state.episode_return, state.episode_steps)
        (env_state, obs, total, steps), transitions = jax.lax.scan(step, start, jax.random.split(key, config.num_steps))
        state = state.replace(env_state=env_state, obs=obs, episode_return=total, episode_steps=steps)
        return state, transitions

    return collect


def scale_rewards(state: PPOState, rewards: jax.Array, done: jax.Array, discount: float) -> tuple[PPOState, jax.Array]:
    """Rewards [T, B] divided by the running deviation of discounted returns (these included), clipped to +-10."""

    def forward(discounted, step):
        reward, done = step
        discounted = discounted * discount + reward
        return jnp.where(done, 0.0, discounted), discounted

    discounted, discounted_returns = jax.lax.scan(forward, state.discounted, (rewards, done))
    moments = state.return_moments.update(discounted_returns)
    # Divided, not centred: subtracting a mean would change which policy is best.
    scaled = jnp.clip(rewards * jax.lax.rsqrt(moments.var + 1e-8), -10.0, 10.0)
    return state.replace(discounted=discounted, return_moments=moments), scaled


def advantages_of(
    agent: Agent, config: PPOConfig, params: Any, moments: RunningMoments, steps: Transitions, rewards: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """GAE over steps [T, B]: (advantages, value targets). Truncated episodes bootstrap from their last state."""
    values = agent.value(params, moments, flat_steps(steps.obs)).reshape(rewards.shape)
    next_values = agent.value(params, moments, flat_steps(steps.next_obs)).reshape(rewards.shape)
    # Only a terminal state has no future: a truncated episode bootstraps from `next_obs`, its last state.
    discounts = jnp.where(steps.terminated, 0.0, config.discount)
    return returns.gae(rewards, discounts, values, next_values, config.trace_decay, steps.done)


def surrogate(
    agent: Agent, config: PPOConfig, params: Any, moments: RunningMoments, batch: Minibatch, hooks: Hooks = Hooks()
) -> tuple[jax.Array, Any]:
    """`losses.ppo` of a minibatch, with advantages normalised, then changed by `hooks.advantage`.

    Args:
      batch: obs, action, old_log_probs, advantages, targets, replaced, and old_values if `value_clip` is finite; [N].
    """
    out = agent.policy(params, moments, batch["obs"])
    A = batch["advantages"]
    # Normalised in each minibatch; hooks see advantages at that scale.
    A = (A - jnp.mean(A)) / (jnp.std(A) + 1e-8)
    A = hooks.advantage(A, batch) if hooks.advantage else A
    return losses.ppo(
        networks.log_prob(*out, batch["action"]),
        batch["old_log_probs"],
        A,
        agent.value(params, moments, batch["obs"]),
        batch["targets"],
        networks.entropy(*out),
        jnp.full(A.shape, 1.0 / A.size),
        clip=config.clip,
        value_coef=config.value_coef,
        entropy_coef=config.entropy_coef,
        old_values=batch.get("old_values"),
        value_clip=config.value_clip,
    )


def make_learn(env: Any, env_params: Any, config: PPOConfig, hooks: Hooks = Hooks()) -> Callable[..., Any]:
    """A pure `learn(state, transitions, rewards [T, B], key) -> (state, metrics)`: the gradient steps of an update."""
    agent, tx = agent_of(env, env_params, config), optimizer(config)

    def learn(state: PPOState, steps: Transitions, rewards: jax.Array, key: jax.Array):
        moments = state.obs_moments
        if config.normalize_reward:
            state, rewards = scale_rewards(state, rewards, steps.done, config.discount)
        advantages, targets = advantages_of(agent, config, state.params, moments, steps, rewards)
        obs, action = flat_steps(steps.obs), flat_steps(steps.action)
        data = {
            "obs": obs,
            "action": action,
            # Under the statistics and weights of the rollout: the first ratio is exactly 1.
            "old_log_probs": networks.log_prob(*agent.policy(state.params, moments, obs), action),
            "advantages": flat_steps(advantages),
            "targets": flat_steps(targets),
            "replaced": flat_steps(steps.replaced),
        }
        if math.isfinite(config.value_clip):
            data["old_values"] = agent.value(state.params, moments, obs)

        def minibatch(carry, batch):
            params, opt_state = carry
            (_, metrics), grads = jax.value_and_grad(
                lambda p: surrogate(agent, config, p, moments, batch, hooks), has_aux=True
            )(params)
            updates, opt_state = tx.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), metrics

        def epoch(carry, key):
            # One gather per epoch: on a CPU one per minibatch is slower, and so is one for all epochs.
            order = jax.random.permutation(key, rewards.size)
            parts = jax.tree.map(lambda x: x[order].reshape(config.num_minibatches, -1, *x.shape[1:]), data)
            return jax.lax.scan(minibatch, carry, parts)

        keys = jax.random.split(key, config.epochs)
        (params, opt_state), metrics = jax.lax.scan(epoch, (state.params, state.opt_state), keys)
        state = state.replace(params=params, opt_state=opt_state, iteration=state.iteration + 1)
        if config.normalize_obs:
            state = state.replace(obs_moments=moments.update(steps.obs))
        return state, jax.tree.map(jnp.mean, metrics)

    return learn


def episode_metrics(steps: Transitions) -> dict[str, jax.Array]:
    """Mean return and length of the episodes that ended in these steps (0 if none did), and counts."""
    episodes = jnp.sum(steps.done)

    def mean(x):
        return jnp.sum(x) / jnp.maximum(episodes, 1)

    return {
        "env_return": mean(steps.finished_return),
        "env_steps": mean(steps.finished_steps),
        "episodes": episodes,
        "replaced": jnp.mean(steps.replaced),
        "exploded": jnp.sum(steps.info.get("exploded", 0)),
    }


def make_update(env: Any, env_params: Any, config: PPOConfig, hooks: Hooks = Hooks()) -> Callable[..., Any]:
    """A pure `update(state, key) -> (state, metrics)`. Metrics: the loss's, the episodes' and "finite".

    The state is new even where "finite" is 0; see `updates.keep_finite`.
    """
    collect, learn = make_collect(env, env_params, config, hooks), make_learn(env, env_params, config, hooks)

    def update(state: PPOState, key: jax.Array) -> tuple[PPOState, dict[str, jax.Array]]:
        key_collect, key_learn = jax.random.split(key)
        state, steps = collect(state, key_collect)
        rewards, extra = steps.reward, {}
        if hooks.bonus:
            bonus, aux, extra = hooks.bonus(state.aux, steps, state.obs_moments)
            state, rewards = state.replace(aux=aux), rewards + bonus
        state, metrics = learn(state, steps, rewards, key_learn)
        finite = jnp.isfinite(metrics["policy_loss"]) & jnp.isfinite(metrics["value_loss"])
        return state, {**metrics, **episode_metrics(steps), **extra, "finite": finite}

    return update
