"""Deep Q-learning on the grid a game shows, the non-language baseline of MS-GRPO (appendix, "DQN Agent").

    state = init_state(env, env_params, config, key)
    train = jax.jit(make_train(env, env_params, config), static_argnums=1)
    state, metrics = train(state, 100)                 # 100 gradient steps, `num_envs` environment steps each

One pure program plays, stores and learns. Learning rate, discount and epsilon decay are numbers
in the state, so a sweep over them is `jax.vmap(train)` over a stack of states.

What the paper leaves open, and our choice: Adam; the Huber loss; `num_envs` games side by side and one gradient
step for each of their moves together (Mnih et al. move once a step: num_envs=1); a step limit cuts an episode
without ending it, so values bootstrap through it. A 3x3 convolution is one matrix product over the nine
shifted boards, which `vmap` over weights keeps fast on every device.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax

from nlrl_jax.config import check, option
from nlrl_jax.updates import where


@dataclasses.dataclass(frozen=True)
class DQNConfig:
    """Deep Q-learning; the defaults are those of the paper's best agent, except `num_envs`."""

    learning_rate: float = option(1e-5, "Adam's learning rate [alpha]", above=0)
    discount: float = option(0.9, "discount factor [gamma]", least=0, below=1)
    epsilon_decay_steps: float = option(1e5, "environment steps over which epsilon falls to epsilon_end", above=0)
    epsilon_start: float = option(1.0, "first share of random moves", least=0, most=1)
    epsilon_end: float = option(0.1, "last share of random moves", least=0, most=1)
    buffer_size: int = option(10_000, "transitions kept for replay, a multiple of num_envs", least=1)
    batch_size: int = option(128, "transitions per gradient step", least=1)
    target_every: int = option(1_000, "gradient steps between copies to the target network", least=1)
    learning_starts: int = option(1_000, "transitions in the buffer before the first gradient step", least=0)
    num_envs: int = option(10, "games played in parallel; 1 is the paper's", least=1)
    max_steps: int = option(20, "maximum steps per training episode", least=1)

    def __post_init__(self):
        check(self)
        if self.buffer_size % self.num_envs:
            raise ValueError(f"buffer_size {self.buffer_size} is not a multiple of num_envs {self.num_envs}")
        if self.learning_starts > self.buffer_size:
            raise ValueError(
                f"learning_starts {self.learning_starts} never comes: the buffer holds {self.buffer_size} transitions"
            )
        if self.epsilon_end > self.epsilon_start:
            raise ValueError(f"epsilon goes from {self.epsilon_start} to {self.epsilon_end}; it must not rise")


class Conv3x3(nn.Module):
    """A 3x3 convolution, stride 1, padded: [B, H, W, C] -> [B, H, W, features]."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        _, H, W, _ = x.shape
        # [B, H, W, 9 C]: each cell with its neighbours, so that one product with [9 C, features] is the convolution.
        padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        shifted = [padded[:, i : i + H, j : j + W] for i in range(3) for j in range(3)]
        return nn.Dense(self.features, kernel_init=nn.initializers.he_normal())(jnp.concatenate(shifted, axis=-1))


class QNetwork(nn.Module):
    """The appendix's Table 2: three 3x3 convolutions (32, 64, 64), 512 units, one value an action."""

    num_actions: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        """obs [B, H, W, C] -> Q values [B, A]."""
        x = obs.astype(jnp.float32)
        for features in (32, 64, 64):
            x = nn.relu(Conv3x3(features)(x))
        x = nn.relu(nn.Dense(512, kernel_init=nn.initializers.he_normal())(x.reshape(x.shape[0], -1)))
        return nn.Dense(self.num_actions)(x)


@flax.struct.dataclass
class ReplayBuffer:
    """A ring of N transitions. obs, next_obs: uint8 [N, H, W, C]; action int32, reward float32, terminated bool [N]."""

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    next_obs: jax.Array
    terminated: jax.Array


@flax.struct.dataclass
class DQNState:
    """Everything a run is; stack several for a sweep.

    env_state: of `num_envs` games, with `obs`. seed: uint32 [], all randomness. iteration: chunks trained.
    played: steps of each game. updates: gradient steps. learning_rate, discount, epsilon_decay_steps: float32 [].
    """

    params: Any
    target: Any
    opt_state: Any
    buffer: ReplayBuffer
    env_state: Any
    obs: jax.Array
    episode_steps: jax.Array
    played: jax.Array
    updates: jax.Array
    iteration: jax.Array
    seed: jax.Array
    learning_rate: jax.Array
    discount: jax.Array
    epsilon_decay_steps: jax.Array

    def learned(self) -> dict[str, Any]:
        """What a checkpoint holds: all of it, so that a resumed run is the same run."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def q_values(env: Any, params: Any, obs: jax.Array) -> jax.Array:
    """Q of every action at obs [B, H, W, C]: [B, A]."""
    return QNetwork(env.num_actions).apply({"params": params}, obs)


# Without its learning rate, which is a number of the state: a sweep stacks states of several rates.
_adam = optax.scale_by_adam()


def _truncated(env: Any, env_params: Any, states: Any) -> jax.Array | bool:
    """Which of these states, leading axis [B], are past the environment's own limit; none where it has none."""
    return jax.vmap(env.is_truncated, in_axes=(0, None))(states, env_params) if hasattr(env, "is_truncated") else False


def check_env(env: Any, env_params: Any) -> tuple[int, int, int]:
    """The shape of an environment's observations.

    Raises:
      ValueError: the environment does not name its number of actions or the space of its observations, or these are no
        grid [H, W, C].
    """
    try:
        shape = env.observation_space(env_params).shape
        env.num_actions  # noqa: B018
    except (AttributeError, NotImplementedError) as error:
        missing = str(error) or "observation_space or num_actions is not implemented"
        raise ValueError(
            f"a DQN needs the environment's observation_space(params) and num_actions; "
            f"{type(env).__name__} lacks one ({missing})"
        ) from None
    if len(shape) != 3:
        raise ValueError(f"observations have shape {shape}; the network reads a grid [height, width, channels]")
    return shape


def init_state(env: Any, env_params: Any, config: DQNConfig, key: jax.Array) -> DQNState:
    """A fresh network, an empty buffer and `num_envs` new games.

    Observations are numbers 0..255, which uint8 can hold. Errors: see `check_env`.
    """
    key_net, key_env, key_seed = jax.random.split(key, 3)
    shape = check_env(env, env_params)
    obs, env_state = jax.vmap(env.reset_env, in_axes=(0, None))(jax.random.split(key_env, config.num_envs), env_params)
    params = QNetwork(env.num_actions).init(key_net, jnp.zeros((1, *shape)))["params"]
    N = config.buffer_size
    board = jnp.zeros((N, *shape), jnp.uint8)
    zero = jnp.zeros((), jnp.int32)
    return DQNState(
        params=params,
        target=params,
        opt_state=_adam.init(params),
        buffer=ReplayBuffer(board, jnp.zeros(N, jnp.int32), jnp.zeros(N), board, jnp.zeros(N, bool)),
        env_state=env_state,
        obs=obs.astype(jnp.uint8),
        episode_steps=jnp.zeros(config.num_envs, jnp.int32),
        played=zero,
        updates=zero,
        iteration=zero,
        seed=jax.random.bits(key_seed, (), jnp.uint32),
        learning_rate=jnp.float32(config.learning_rate),
        discount=jnp.float32(config.discount),
        epsilon_decay_steps=jnp.float32(config.epsilon_decay_steps),
    )


def play(
    env: Any, env_params: Any, config: DQNConfig, state: DQNState, key: jax.Array
) -> tuple[DQNState, dict[str, jax.Array]]:
    """One epsilon-greedy move in each game, stored; an episode that is over is replaced by a new one."""
    n = config.num_envs
    key_explore, key_random, key_step, key_reset = jax.random.split(key, 4)
    # 1. Epsilon falls linearly over environment steps, of which there are n a move.
    span = config.epsilon_start - config.epsilon_end
    epsilon = jnp.maximum(
        config.epsilon_start - span * state.played * n / state.epsilon_decay_steps, config.epsilon_end
    )
    # 2. A move in each game.
    greedy = jnp.argmax(q_values(env, state.params, state.obs), axis=-1).astype(jnp.int32)
    random = jax.random.randint(key_random, (n,), 0, env.num_actions)
    action = jnp.where(jax.random.uniform(key_explore, (n,)) < epsilon, random, greedy)
    obs, env_state, reward, terminated, _ = jax.vmap(env.step_env, in_axes=(0, 0, 0, None))(
        jax.random.split(key_step, n), state.env_state, action, env_params
    )
    obs = obs.astype(jnp.uint8)
    # 3. The ring's size is a multiple of n, so that a write never runs over its end.
    start = state.played * n % config.buffer_size

    def store(ring, new):
        return jax.lax.dynamic_update_slice_in_dim(ring, new.astype(ring.dtype), start, axis=0)

    buffer = jax.tree.map(store, state.buffer, ReplayBuffer(state.obs, action, reward, obs, terminated))
    # 4. New episodes in place of those that are over.
    steps = state.episode_steps + 1
    done = terminated | _truncated(env, env_params, env_state) | (steps >= config.max_steps)
    new_obs, new_state = jax.vmap(env.reset_env, in_axes=(0, None))(jax.random.split(key_reset, n), env_params)
    state = state.replace(
        buffer=buffer,
        env_state=where(done, new_state, env_state),
        obs=where(done, new_obs.astype(jnp.uint8), obs),
        episode_steps=jnp.where(done, 0, steps),
        played=state.played + 1,
    )
    return state, {"reward": jnp.sum(reward), "episodes": jnp.sum(done), "epsilon": epsilon}


def td_loss(env: Any, params: Any, state: DQNState, batch: ReplayBuffer) -> tuple[jax.Array, jax.Array]:
    """Huber loss of r + gamma max_a Q_target(s', a) - Q(s, a), nothing after a terminal state; and the mean of Q."""
    # max_a' Q_target(s', a'); an episode that was only cut off still has a future.
    following = jnp.max(q_values(env, state.target, batch.next_obs), axis=-1)
    target = batch.reward + state.discount * jnp.where(batch.terminated, 0.0, following)
    q = jnp.take_along_axis(q_values(env, params, batch.obs), batch.action[:, None], axis=-1)[:, 0]
    return jnp.mean(optax.huber_loss(q, jax.lax.stop_gradient(target))), jnp.mean(q)


def learn(env: Any, config: DQNConfig, state: DQNState, key: jax.Array) -> tuple[DQNState, dict[str, jax.Array]]:
    """One gradient step on a uniform batch of the buffer, or nothing while it is too empty."""
    filled = jnp.minimum(state.played * config.num_envs, config.buffer_size)
    index = jax.random.randint(key, (config.batch_size,), 0, filled)
    batch = jax.tree.map(lambda ring: ring[index], state.buffer)
    grad_of = jax.value_and_grad(functools.partial(td_loss, env), has_aux=True)
    (loss, q), grads = grad_of(state.params, state, batch)
    updates, opt_state = _adam.update(grads, state.opt_state)
    params = jax.tree.map(lambda p, u: p - state.learning_rate * u, state.params, updates)
    # The step is computed in any case, and thrown away: under `vmap` a `cond` would compute both branches as well.
    ready = filled >= config.learning_starts
    params, opt_state = jax.tree.map(
        lambda new, old: jnp.where(ready, new, old), (params, opt_state), (state.params, state.opt_state)
    )
    done = state.updates + ready
    copy = ready & (done % config.target_every == 0)
    target = jax.tree.map(lambda new, old: jnp.where(copy, new, old), params, state.target)
    state = state.replace(params=params, opt_state=opt_state, target=target, updates=done)
    return state, {"loss": jnp.where(ready, loss, 0.0), "q": q}


def make_train(env: Any, env_params: Any, config: DQNConfig) -> Callable[..., tuple[DQNState, dict[str, jax.Array]]]:
    """A pure `train(state, num_steps) -> (state, metrics)`; jit it with `num_steps` static.

    A step is one move in each game and, once the buffer holds `learning_starts` transitions, one gradient step.

    Metrics are means over the chunk: loss, q (of the moves in the batches), epsilon, env_return and episode_steps of
    the episodes that ended in it; env_steps and updates count from the run's start. "finite" says whether the losses
    are; the state is new even where they are not (see `updates.keep_finite`).
    """

    def step(state, _):
        # All randomness is of (seed, step), so that chunks of any length make the same run.
        key = jax.random.fold_in(jax.random.key(state.seed), state.played)
        key_play, key_learn = jax.random.split(key)
        state, played = play(env, env_params, config, state, key_play)
        state, learned = learn(env, config, state, key_learn)
        return state, {**played, **learned}

    def train(state: DQNState, num_steps: int) -> tuple[DQNState, dict[str, jax.Array]]:
        state, sums = jax.lax.scan(step, state, None, length=num_steps)
        episodes = jnp.maximum(jnp.sum(sums["episodes"]), 1)
        metrics = {
            "loss": jnp.mean(sums["loss"]),
            "q": jnp.mean(sums["q"]),
            "epsilon": jnp.mean(sums["epsilon"]),
            "env_return": jnp.sum(sums["reward"]) / episodes,
            "episode_steps": num_steps * config.num_envs / episodes,
            "env_steps": state.played * config.num_envs,
            "updates": state.updates,
            "finite": jnp.isfinite(jnp.mean(sums["loss"])),
        }
        return state.replace(iteration=state.iteration + 1), metrics

    return train


def evaluate(env: Any, env_params: Any, params: Any, key: jax.Array, states: Any, max_steps: int) -> jax.Array:
    """Greedy returns from given initial states (leading axis [B]), `max_steps` moves at most: float32 [B]."""
    B = jax.tree.leaves(states)[0].shape[0]

    def step(carry, key):
        states, done, total = carry
        obs = jax.vmap(lambda state: env.observe(key, state, None, env_params))(states)
        action = jnp.argmax(q_values(env, params, obs), axis=-1).astype(jnp.int32)
        _, states, reward, terminated, _ = jax.vmap(env.step_env, in_axes=(0, 0, 0, None))(
            jax.random.split(key, B), states, action, env_params
        )
        total += jnp.where(done, 0.0, reward)
        return (states, done | terminated | _truncated(env, env_params, states), total), None

    start = (states, jnp.zeros(B, bool), jnp.zeros(B))
    return jax.lax.scan(step, start, jax.random.split(key, max_steps))[0][2]
