"""MS-GRPO: Multi-Step Group-Relative Policy Optimization (Algorithm 1), one XLA program an iteration.

    update = make_update(policy, game, config)
    state = init_state(policy.model, params, config, key)
    state, metrics = update(state, key)     # random key in, new parameters out

What the paper leaves open, and our default (each an option of `MSGRPOConfig`):
- the KL estimator: k3; the standard deviation divides by G; one gradient step a batch
  (`updates_per_batch`), AdamW without decay, gradients clipped to norm 1; LoRA rank 16, alpha 32;
- the ratio and the KL use the distribution tokens are sampled from, softmax(logits / temperature),
  but not the top-k cut;
- what the paper's discussion proposes is there, switched off: `credit="turn"` (the return-to-go of a turn against the
  group's at the same turn), `max_temperature` (exploration.py), a policy with several templates;
- `num_groups` > 1 runs Algorithm 1 on several initial states side by side: advantages and AAW
  sampling within each group, the objective averaged over groups. 1 is the paper's.

In the first step on a batch theta_old is theta: the old log-probabilities are that step's own, not a
second forward pass, and the ratio is exactly 1.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from nlrl_jax import losses
from nlrl_jax.algorithms.exploration import Stagnation, adapt, init_stagnation
from nlrl_jax.algorithms.policy_gradient import log_probs_of, loss_and_grad, micro_batches
from nlrl_jax.lm.transformer import Transformer, init_lora
from nlrl_jax.returns import aaw_sample, group_advantage, returns_to_go
from nlrl_jax.rollouts import text_games
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.types import TextGame


@dataclasses.dataclass(frozen=True)
class MSGRPOConfig:
    """Hyperparameters, the paper's names in brackets; the defaults are the paper's.

    Attributes:
      group_size: episodes a group [G].
      group_sample: episodes of a group that are learned from [G'].
      num_groups: initial states an iteration, one group each.
      sampling_temperature: AAW temperature [T_ep]; 0 learns from all G episodes.
      max_turns: replies an episode at most ("LAP actions").
      max_steps: environment steps an episode at most.
      learning_rate: [eta].
      decay_steps: gradient steps over which the learning rate falls linearly to zero; 0 is constant (the paper's).
      clip_low, clip_high: [epsilon_low, epsilon_up].
      beta: weight of the KL penalty [beta].
      kl_estimator: k1, k2 or k3.
      std_ddof: the advantage's standard deviation divides by G - std_ddof.
      invalid_action_reward: environment reward of each invalid action.
      updates_per_batch: gradient steps on the same episodes.
      max_grad_norm: gradients are clipped to this norm.
      credit: "episode" (the paper's Monte Carlo return for every turn) or "turn" (return-to-go).
      max_temperature: above 0, the sampling temperature rises up to this while returns stagnate.
      micro_batch: replies differentiated at a time; 0 is all at once. Changes memory, not the result.
      remat: recompute blocks in the backward pass.
    """

    group_size: int = 100
    group_sample: int = 25
    num_groups: int = 1
    sampling_temperature: float = 0.1
    max_turns: int = 5
    max_steps: int = 10
    learning_rate: float = 1e-4
    decay_steps: int = 0
    clip_low: float = 0.1
    clip_high: float = 0.1
    beta: float = 0.1
    kl_estimator: str = "k3"
    std_ddof: int = 0
    invalid_action_reward: float = -0.5
    updates_per_batch: int = 1
    max_grad_norm: float = 1.0
    credit: str = "episode"
    max_temperature: float = 0.0
    micro_batch: int = 0
    remat: bool = False

    def __post_init__(self):
        if self.group_size < 2:
            raise ValueError(f"group_size is {self.group_size}; advantages are relative to a group of at least 2")
        if self.sampling_temperature < 0:
            raise ValueError(f"sampling_temperature is {self.sampling_temperature}; it must be 0 (off) or above")
        if self.sampling_temperature > 0 and not 2 <= self.group_sample <= self.group_size:
            raise ValueError(
                f"group_sample (G') is {self.group_sample}; it must be between 2 and group_size (G) = {self.group_size}"
            )
        if self.kl_estimator not in losses.KL_ESTIMATORS:
            raise ValueError(
                f"kl_estimator {self.kl_estimator!r} is not known; choose one of {', '.join(losses.KL_ESTIMATORS)}"
            )
        if self.credit not in ("episode", "turn"):
            raise ValueError(f"credit {self.credit!r} is not known; choose 'episode' or 'turn'")
        for name in ("num_groups", "max_turns", "max_steps", "updates_per_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")


@flax.struct.dataclass
class TrainState:
    """params: frozen base weights. lora: the adapter, all that is learned. explore: see exploration.py."""

    params: Any
    lora: Any
    opt_state: Any
    iteration: jax.Array
    explore: Stagnation = dataclasses.field(default_factory=lambda: init_stagnation(1.0))

    def learned(self) -> dict[str, Any]:
        """What a checkpoint holds: all but the frozen base weights."""
        return {
            "lora": self.lora, "opt_state": self.opt_state, "iteration": self.iteration, "explore": self.explore
        }  # fmt: skip


def optimizer(config: MSGRPOConfig) -> optax.GradientTransformation:
    """Clipped AdamW over the adapter."""
    rate = (
        optax.linear_schedule(config.learning_rate, 0.0, config.decay_steps)
        if config.decay_steps
        else config.learning_rate
    )
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adamw(rate, weight_decay=0.0))


def init_state(
    model: Transformer, params: Any, config: MSGRPOConfig, key: jax.Array, temperature: float = 1.0
) -> TrainState:
    """theta <- theta_ref (line 1): a fresh adapter changes nothing.

    Args:
      temperature: the sampling's; matters with `max_temperature` only.
    """
    lora = init_lora(model, key)
    zero = jnp.zeros((), jnp.int32)
    return TrainState(params, lora, optimizer(config).init(lora), zero, init_stagnation(temperature))


def make_update(
    policy: LanguageAgentPolicy, game: TextGame, config: MSGRPOConfig
) -> Callable[[TrainState, jax.Array], tuple[TrainState, dict[str, jax.Array]]]:
    """One iteration of Algorithm 1 as a pure function `update(state, key) -> (state, metrics)`; jit it.

    Raises:
      ValueError: `max_temperature` below the policy's own temperature.

    A non-finite loss or gradient leaves the state as it was and sets `metrics["finite"]` to 0.
    """
    n, G = config.num_groups, config.group_size
    base = policy.sampling.temperature
    if config.max_temperature and config.max_temperature < base:
        raise ValueError(f"max_temperature {config.max_temperature} is below the sampling temperature {base}")
    objective = functools.partial(  # equations 1-3
        losses.ms_grpo,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        beta=config.beta,
        kl_estimator=config.kl_estimator,
    )

    def update(state: TrainState, key: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
        key_reset, key_play, key_sample = jax.random.split(key, 3)
        variables = {"params": state.params, "lora": state.lora}  # theta_old <- theta (line 3)
        temperature = state.explore.temperature if config.max_temperature else None
        constants = {}
        if policy.num_templates > 1:
            drawn = jax.random.randint(jax.random.fold_in(key, 3), (n * G,), 0, policy.num_templates)
            constants = {"template": drawn}

        # Lines 4-5: one initial state s_0 a group, the same for its G episodes.
        states = text_games.reset(game, key_reset, n)
        states = jax.tree.map(lambda x: jnp.repeat(x, G, axis=0), states)

        # Lines 6-16: every episode j and step t at once.
        episodes = text_games.play(
            policy, game, variables, key_play, states, config.max_turns, config.max_steps,
            temperature=temperature, constants=constants,
        )  # fmt: skip
        turns = episodes.turns

        # Line 17: C_j = sum_t (r_{j,t+1} + Phi_{j,t}).
        rewards = composite_rewards(turns, config)
        returns = jnp.sum(rewards, axis=0).reshape(n, G)

        # Line 19, equation 4.
        advantages = group_advantage(returns, config.std_ddof)

        if config.sampling_temperature > 0:
            # Lines 20-23, equation 5: G' episodes of each group, advantages recomputed on them.
            chosen = aaw_sample(key_sample, advantages, config.group_sample, config.sampling_temperature)
            advantages = group_advantage(jnp.take_along_axis(returns, chosen, axis=-1), config.std_ddof)
        else:
            chosen = jnp.broadcast_to(jnp.arange(G), (n, G))
        chosen = (chosen + G * jnp.arange(n)[:, None]).reshape(-1)
        learned = jax.tree.map(lambda x: x[:, chosen], turns)
        advantages = advantages.reshape(-1)
        if config.credit == "turn":
            by_group = lambda x: x.reshape(config.max_turns, n, -1)
            to_go = by_group(returns_to_go(rewards)[:, chosen])
            advantages = group_advantage(to_go, config.std_ddof, mask=by_group(learned.active))
            advantages = advantages.reshape(config.max_turns, -1)

        # Line 24: theta <- theta + eta * grad J.
        rows = micro_batches(learned, advantages, config.micro_batch)
        if config.updates_per_batch > 1:  # theta moves away from theta_old between the steps
            rows = rows._replace(old_log_probs=log_probs_of(policy, variables, rows, temperature))
        finite = jnp.array(True)
        lora, opt_state = state.lora, state.opt_state
        for _ in range(config.updates_per_batch):
            loss, aux, grads = loss_and_grad(
                policy, objective, state.params, lora, rows, config.beta > 0, config.remat, temperature
            )
            grad_norm = optax.global_norm(grads)
            finite &= jnp.isfinite(loss) & jnp.isfinite(grad_norm)
            updates, opt_state = optimizer(config).update(grads, opt_state, lora)
            lora = optax.apply_updates(lora, updates)
        keep = lambda new, old: jnp.where(finite, new, old)
        new_state = TrainState(
            params=state.params,
            lora=jax.tree.map(keep, lora, state.lora),
            opt_state=jax.tree.map(keep, opt_state, state.opt_state),
            iteration=state.iteration + finite,
            explore=state.explore,
        )
        metrics = {"loss": loss, **aux, "grad_norm": grad_norm, "finite": finite}
        if config.max_temperature:
            explore = adapt(state.explore, jnp.mean(returns), base, config.max_temperature)
            new_state = new_state.replace(explore=jax.tree.map(keep, explore, state.explore))
            metrics["temperature"] = temperature
        return new_state, {**metrics, **episode_metrics(episodes, returns)}

    return update


def composite_rewards(turns: text_games.Turns, config: MSGRPOConfig) -> jax.Array:
    """r + Phi of each turn: environment reward, invalid actions and format penalties. float32 [T, B]."""
    parsed = turns.turn.parsed
    invalid = config.invalid_action_reward * parsed.num_invalid
    return turns.reward + jnp.where(turns.active, invalid + parsed.format_penalty, 0.0)


def episode_metrics(episodes: text_games.Episodes, returns: jax.Array) -> dict[str, jax.Array]:
    """Means over the iteration's episodes (or over the turns played); `returns` is [n, G]."""
    turns = episodes.turns
    said, active = turns.turn, turns.active
    played = jnp.maximum(jnp.sum(active), 1)
    per_turn = lambda x: jnp.sum(jnp.where(active, x, 0)) / played
    equal = jnp.max(returns, axis=-1) == jnp.min(returns, axis=-1)
    return {
        "return": jnp.mean(returns),
        "env_return": jnp.mean(jnp.sum(turns.reward, axis=0)),
        "success": jnp.mean(episodes.success.astype(jnp.float32)),
        "terminated": jnp.mean(episodes.terminated.astype(jnp.float32)),
        "format_penalty": per_turn(said.parsed.format_penalty),
        "invalid_actions": per_turn(said.parsed.num_invalid),
        "reply_tokens": per_turn(said.reply_lengths),
        "cut_replies": per_turn(~said.ended),
        "turns": jnp.mean(jnp.sum(active, axis=0)),
        "steps": jnp.mean(jnp.sum(turns.steps, axis=0)),
        "uninformative_groups": jnp.mean(equal.astype(jnp.float32)),
    }
