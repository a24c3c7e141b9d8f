"""MS-GRPO: Multi-Step Group-Relative Policy Optimization (Algorithm 1), one XLA program an iteration.

    update = make_update(policy, game, config)
    state = init_state(policy, params, config, key)
    state, metrics = update(state, key)     # random key in, new parameters out

What the paper leaves open, and our default (each an option of `MSGRPOConfig`):
- the KL estimator: k3; the standard deviation divides by G; one gradient step a batch, AdamW without
  decay, gradients clipped to norm 1; LoRA rank 16, alpha 32;
- the ratio and the KL use the distribution tokens are sampled from, softmax(logits / temperature),
  but not the top-k cut;
- `num_groups` > 1 runs Algorithm 1 on several initial states side by side: advantages and AAW
  sampling within each group, the objective averaged over groups. 1 is the paper's.

With one step a batch theta_old is theta: the old log-probabilities are this step's own, not a second
forward pass, and the ratio is exactly 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from nlrl_jax import losses, rollout
from nlrl_jax.lm.generate import compute_prefix
from nlrl_jax.lm.score import score
from nlrl_jax.lm.transformer import init_lora
from nlrl_jax.returns import aaw_sample, group_advantage
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
      clip_low, clip_high: [epsilon_low, epsilon_up].
      beta: weight of the KL penalty [beta].
      kl_estimator: k1, k2 or k3.
      std_ddof: the advantage's standard deviation divides by G - std_ddof.
      invalid_action_reward: environment reward of each invalid action.
      max_grad_norm: gradients are clipped to this norm.
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
    clip_low: float = 0.1
    clip_high: float = 0.1
    beta: float = 0.1
    kl_estimator: str = "k3"
    std_ddof: int = 0
    invalid_action_reward: float = -0.5
    max_grad_norm: float = 1.0
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
        for name in ("num_groups", "max_turns", "max_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")


@flax.struct.dataclass
class TrainState:
    """params: the frozen base weights. lora: the adapter, all that is learned. iteration: int32 []."""

    params: Any
    lora: Any
    opt_state: Any
    iteration: jax.Array


def optimizer(config: MSGRPOConfig) -> optax.GradientTransformation:
    """Clipped AdamW over the adapter."""
    return optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm), optax.adamw(config.learning_rate, weight_decay=0.0)
    )


def init_state(policy: LanguageAgentPolicy, params: Any, config: MSGRPOConfig, key: jax.Array) -> TrainState:
    """theta <- theta_ref (line 1): a fresh adapter changes nothing."""
    lora = init_lora(policy.model, key)
    return TrainState(params, lora, optimizer(config).init(lora), jnp.zeros((), jnp.int32))


def make_update(
    policy: LanguageAgentPolicy, game: TextGame, config: MSGRPOConfig
) -> Callable[[TrainState, jax.Array], tuple[TrainState, dict[str, jax.Array]]]:
    """One iteration of Algorithm 1 as a pure function `update(state, key) -> (state, metrics)`; jit it.

    A non-finite loss or gradient leaves the state as it was and sets `metrics["finite"]` to 0.
    """
    n, G = config.num_groups, config.group_size

    def update(state: TrainState, key: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
        key_reset, key_play, key_sample = jax.random.split(key, 3)
        variables = {"params": state.params, "lora": state.lora}  # theta_old <- theta (line 3)

        # Lines 4-5: one initial state s_0 a group, the same for its G episodes.
        states = rollout.reset(game, key_reset, n)
        states = jax.tree.map(lambda x: jnp.repeat(x, G, axis=0), states)

        # Lines 6-16: every episode j and step t at once.
        episodes = rollout.play(policy, game, variables, key_play, states, config.max_turns, config.max_steps)
        turns = episodes.turns

        # Line 17: C_j = sum_t (r_{j,t+1} + Phi_{j,t}).
        returns = composite_returns(turns, config).reshape(n, G)

        # Line 19, equation 4.
        advantages = group_advantage(returns, config.std_ddof)

        if config.sampling_temperature > 0:
            # Lines 20-23, equation 5: G' episodes of each group, advantages recomputed on them.
            chosen = aaw_sample(key_sample, advantages, config.group_sample, config.sampling_temperature)
            advantages = group_advantage(jnp.take_along_axis(returns, chosen, axis=-1), config.std_ddof)
        else:
            chosen = jnp.broadcast_to(jnp.arange(G), (n, G))
        chosen = (chosen + G * jnp.arange(n)[:, None]).reshape(-1)

        # Line 24: gradient ascent on J.
        batch = jax.tree.map(lambda x: x[:, chosen], turns)
        loss, aux, grads = loss_and_grad(policy, config, state, batch, advantages.reshape(-1))
        grad_norm = optax.global_norm(grads)
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        updates, opt_state = optimizer(config).update(grads, state.opt_state, state.lora)
        new = state.replace(lora=optax.apply_updates(state.lora, updates), opt_state=opt_state)
        new = jax.tree.map(lambda a, b: jnp.where(finite, a, b), (new.lora, new.opt_state), (state.lora, state.opt_state))
        new = TrainState(state.params, *new, state.iteration + finite)

        metrics = {"loss": loss, **aux, "grad_norm": grad_norm, "finite": finite}
        return new, {**metrics, **episode_metrics(episodes, returns)}

    return update


def composite_returns(turns: rollout.Turns, config: MSGRPOConfig) -> jax.Array:
    """C_j = sum_t (r + Phi): environment reward, invalid actions and format penalties. [T, B] -> [B]."""
    parsed = turns.turn.parsed
    invalid = config.invalid_action_reward * parsed.num_invalid
    per_turn = turns.reward + jnp.where(turns.active, invalid + parsed.format_penalty, 0.0)
    return jnp.sum(per_turn, axis=0)


def loss_and_grad(
    policy: LanguageAgentPolicy,
    config: MSGRPOConfig,
    state: TrainState,
    turns: rollout.Turns,
    advantages: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array], Any]:
    """-J_MS-GRPO, its metrics and its gradient with respect to the adapter.

    Works through micro-batches of replies. The prompt's static prefix is computed once for all of
    them; the gradient with respect to its keys and values is summed over the micro-batches and pulled
    back through it once, which is the exact gradient. Micro-batches without a reply are skipped.

    Args:
      turns: the chosen episodes' turns, [T, J, ...].
      advantages: [J].
    """
    T, J = turns.active.shape
    said = turns.turn
    K = said.replies.shape[-1]
    mask = (jnp.arange(K) < said.reply_lengths[..., None]) & turns.active[..., None]  # [T, J, K]
    weights = losses.episode_token_weights(jnp.swapaxes(mask, 0, 1))  # [J, T, K]
    rows = {
        "prompts": said.prompts,
        "prompt_lengths": said.prompt_lengths,
        "replies": said.replies,
        "sampled": said.log_probs,
        "weights": jnp.swapaxes(weights, 0, 1),
        "advantages": jnp.broadcast_to(advantages, (T, J)),
    }
    # Replies that were written come first, so that the last micro-batches are empty and skipped.
    order = jnp.argsort(~turns.active.reshape(-1), stable=True)
    rows = jax.tree.map(lambda x: x.reshape(T * J, *x.shape[2:])[order], rows)
    size = min(config.micro_batch or T * J, T * J)
    num = -(-T * J // size)
    pad = num * size - T * J
    rows = jax.tree.map(lambda x: jnp.pad(x, ((0, pad),) + ((0, 0),) * (x.ndim - 1)), rows)
    rows["prompt_lengths"] = jnp.maximum(rows["prompt_lengths"], 1)
    rows = jax.tree.map(lambda x: x.reshape(num, size, *x.shape[1:]), rows)

    model = policy.model.clone(remat=config.remat)
    temperature = policy.sampling.temperature or 1.0

    def log_probs(variables, prefix, row):
        return score(
            model, variables, row["prompts"], row["prompt_lengths"], row["replies"], prefix, temperature
        )

    def prefix_of(lora):
        return compute_prefix(model, {"params": state.params, "lora": lora}, policy.template.prefix)

    prefix, pull_back = jax.vjp(prefix_of, state.lora)
    ref_variables = {"params": state.params}  # the adapter switched off is the reference
    ref_prefix = compute_prefix(model, ref_variables, policy.template.prefix)

    def micro_loss(lora, prefix, row):
        new = log_probs({"params": state.params, "lora": lora}, prefix, row)
        ref = log_probs(ref_variables, ref_prefix, row) if config.beta else new
        old = jax.lax.stop_gradient(new)
        loss, aux = losses.ms_grpo(
            new, old, ref, row["advantages"], row["weights"],
            clip_low=config.clip_low, clip_high=config.clip_high, beta=config.beta, kl_estimator=config.kl_estimator,
        )  # fmt: skip
        return loss, {**aux, "log_prob": jnp.sum(row["weights"] * new)}

    grad = jax.value_and_grad(micro_loss, argnums=(0, 1), has_aux=True)
    zeros = jax.tree.map(
        lambda s: jnp.zeros(s.shape, s.dtype),
        jax.eval_shape(grad, state.lora, prefix, jax.tree.map(lambda x: x[0], rows)),
    )

    def accumulate(total, row):
        add = lambda total: jax.tree.map(jnp.add, total, grad(state.lora, prefix, row))
        return jax.lax.cond(jnp.any(row["weights"] > 0), add, lambda total: total, total), None

    ((loss, aux), (grads, prefix_grads)), _ = jax.lax.scan(accumulate, zeros, rows)
    if prefix is not None:
        grads = jax.tree.map(jnp.add, grads, pull_back(prefix_grads)[0])
    return loss, aux, grads


def episode_metrics(episodes: rollout.Episodes, returns: jax.Array) -> dict[str, jax.Array]:
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
