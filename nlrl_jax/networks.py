"""Small actor-critic networks over numeric observations, normalised: discrete or continuous actions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from nlrl_jax.arrays import expect, present, single_or_wider


@flax.struct.dataclass
class RunningMoments:
    """Running mean and variance over all leading axes. mean, var: float [...]; count: float []."""

    mean: jax.Array
    var: jax.Array
    count: jax.Array

    @classmethod
    def of(cls, shape: tuple[int, ...] = (), dtype: Any = jnp.float32) -> RunningMoments:
        """Before any data: mean 0, variance 1."""
        return cls(jnp.zeros(shape, dtype), jnp.ones(shape, dtype), jnp.zeros((), dtype))

    def update(self, batch: jax.Array) -> RunningMoments:
        """With `batch` [..., *shape] counted in (Chan et al. 1979: two means and variances into one).

        Raises:
          ValueError: an array of another shape, or an empty one.
        """
        self.check(batch)
        if not batch.size:
            raise ValueError(f"a batch of shape {batch.shape} has no mean")
        rows = batch.reshape(-1, *self.mean.shape)
        n, mean, var = float(rows.shape[0]), jnp.mean(rows, axis=0), jnp.var(rows, axis=0)
        total, delta = self.count + n, mean - self.mean
        spread = self.var * self.count + var * n + delta**2 * self.count * n / total
        new = RunningMoments(self.mean + delta * n / total, spread / total, total)
        return jax.tree.map(lambda moment: moment.astype(self.mean.dtype), new)  # a scan's carry keeps its type

    def normalize(self, x: jax.Array, limit: float = 10.0) -> jax.Array:
        """(x - mean) / std of x [..., *shape], clipped to +-limit. ValueError: another shape."""
        self.check(x)
        return jnp.clip((x - self.mean) * jax.lax.rsqrt(self.var + 1e-8), -limit, limit)

    def check(self, values: jax.Array, leading: str = "...") -> None:
        """Raises ValueError: `values` are not [leading, *shape], such as "..." or "B"."""
        expect(" ".join([leading, *map(str, self.mean.shape)]), values=values)


def tower(
    features: tuple[int, ...], out: int, scale: float, name: str | None = None, activation: Any = jnp.tanh
) -> nn.Module:
    """Hidden layers and a linear one, orthogonal, as PPO's networks are usually initialised."""
    layers: list[Any] = []
    for width in features:
        layers += [nn.Dense(width, kernel_init=nn.initializers.orthogonal(math.sqrt(2.0))), activation]
    return nn.Sequential([*layers, nn.Dense(out, kernel_init=nn.initializers.orthogonal(scale))], name=name)


class Actor(nn.Module):
    """observation [B, ...] -> (logits [B, A], None), or (means [B, A], log standard deviations [A])."""

    num_outputs: int
    continuous: bool
    features: tuple[int, ...] = (64, 64)

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        out = tower(self.features, self.num_outputs, 0.01, "actor")(obs.reshape(obs.shape[0], -1))
        if not self.continuous:
            return out, None
        return out, self.param("log_std", nn.initializers.zeros, (self.num_outputs,))


class Critic(nn.Module):
    """observation [B, ...] -> value [B]."""

    features: tuple[int, ...] = (64, 64)

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        return tower(self.features, 1, 1.0, "critic")(obs.reshape(obs.shape[0], -1))[:, 0]


def sample(key: jax.Array, out: jax.Array, log_std: jax.Array | None) -> jax.Array:
    """One action per row of what `Actor` returns: int32 [B], or float32 [B, A]. ValueError: other shapes."""
    _expect_rows(out, log_std)
    out = single_or_wider(out)  # JAX's noise has the array's type: in bfloat16 128 values
    if log_std is None:
        return jax.random.categorical(key, out)
    return out + jnp.exp(log_std) * jax.random.normal(key, out.shape, out.dtype)


def mode(out: jax.Array, log_std: jax.Array | None) -> jax.Array:
    """The most likely action of each row of what `Actor` returns: int32 [B], or float32 [B, A]."""
    _expect_rows(out, log_std)
    return jnp.argmax(out, axis=-1) if log_std is None else out


def log_prob(out: jax.Array, log_std: jax.Array | None, action: jax.Array) -> jax.Array:
    """log pi(action): [B], summed over the dimensions of an action.

    Args:
      out, log_std: what `Actor` returns.
      action: int [B], or [B, A] if actions are continuous.

    Raises:
      ValueError: other shapes, or actions that are not integers where they must be.
    """
    expect("B" if log_std is None else "B A", _expect_rows(out, log_std), action=action)
    if log_std is None:
        if not jnp.issubdtype(action.dtype, jnp.integer):
            raise ValueError(f"action is {action.dtype}; a discrete one must be an integer [B]")
        return jnp.take_along_axis(jax.nn.log_softmax(single_or_wider(out)), action[:, None], axis=-1)[:, 0]
    z = (action - out) * jnp.exp(-log_std)
    return jnp.sum(-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi), axis=-1)


def entropy(out: jax.Array, log_std: jax.Array | None) -> jax.Array:
    """Of the policy at each row of what `Actor` returns: [B]. ValueError: other shapes."""
    _expect_rows(out, log_std)
    if log_std is None:
        log_probs = jax.nn.log_softmax(single_or_wider(out))
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
    each = jnp.sum(log_std + 0.5 * math.log(2 * math.pi * math.e))
    return jnp.broadcast_to(each, out.shape[:1])


def _expect_rows(out: jax.Array, log_std: jax.Array | None) -> dict[str, Any]:
    return expect("A", expect("B A", out=out), **present(log_std=log_std))


class Agent:
    """The networks of an environment and how they are called. Holds no parameters.

    Args:
      features: widths of the hidden layers.
      normalize_obs: observations are normalised by the running moments that are passed in.
    """

    def __init__(self, env: Any, env_params: Any, features: tuple[int, ...], normalize_obs: bool):
        space = env.action_space(env_params)
        self.continuous = not hasattr(space, "n")
        outputs = int(space.shape[0]) if self.continuous else int(space.n)
        self.actor = Actor(outputs, self.continuous, features)
        self.critic = Critic(features)
        self.bounds = (space.low, space.high) if self.continuous else None
        self.normalize_obs = normalize_obs

    def init(self, key: jax.Array, obs: jax.Array) -> dict[str, Any]:
        """Fresh parameters. obs: [B, ...]; only its shape matters."""
        key_actor, key_critic = jax.random.split(key)
        return {
            "actor": self.actor.init(key_actor, obs)["params"],
            "critic": self.critic.init(key_critic, obs)["params"],
        }

    def policy(self, params: Any, moments: RunningMoments, obs: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """The distribution of actions at raw observations [B, ...]; see `sample`."""
        return self.actor.apply({"params": params["actor"]}, self._normalized(moments, obs))

    def value(self, params: Any, moments: RunningMoments, obs: jax.Array) -> jax.Array:
        """V at raw observations [B, ...]: [B]."""
        return self.critic.apply({"params": params["critic"]}, self._normalized(moments, obs))

    def to_env(self, action: jax.Array) -> jax.Array:
        """A continuous action within the environment's bounds."""
        return jnp.clip(action, *self.bounds) if self.continuous else action

    def mean_action(self, params: Any, moments: RunningMoments) -> Callable[[jax.Array], jax.Array]:
        """observations [B, ...] -> the most likely actions within the environment's bounds."""
        return lambda obs: self.to_env(mode(*self.policy(params, moments, obs)))

    def _normalized(self, moments, obs):
        if not self.normalize_obs:
            return obs
        moments.check(obs, "B")
        return moments.normalize(obs)
