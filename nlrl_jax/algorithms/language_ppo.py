"""LLM-PPO, the baseline of NLRL (section B.3.4, Table 16): PPO on a language model's choice among legal moves.

    policy = MovePolicy.for_game(game, model, tokenizer)
    update = make_update(policy, game, config)
    state = init_state(model, params, config, key)
    state, metrics = update(state, key)     # one XLA program: games, advantages, gradient steps

The actor is softmax(score / T) over the legal moves, where a move's score is the log-probability of its word as the
beginning of the reply: one forward pass for all moves, see `text/word_policy.py`. The critic reads the hidden state
that predicts the reply.

Departures from the paper, and what it leaves open:
- moves are the tokenizer's own digits, as in the authors' code, not added special tokens; the bare digit is scored,
  whatever reply format the prompt asks for;
- all games of an iteration run in lockstep, not 8 at a time;
- the critic's error does not reach the actor's weights;
- the critic's hidden layer is as wide as the model, and its output starts at zero;
- advantages are normalised over the moves of an iteration: once every game has the same return, they are the critic's
  errors at full size, which a learning rate far above the default turns into a random walk;
- gradients are clipped to norm 1, actor and critic each;
- all weights learn, or an adapter (`train`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from nlrl_jax import losses
from nlrl_jax.arrays import flat_steps
from nlrl_jax.config import check, option
from nlrl_jax.lm import placement
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.returns import gae
from nlrl_jax.rollouts.scored_words import Moves, play_games, results
from nlrl_jax.text.word_policy import MovePolicy, move_log_probs
from nlrl_jax.types import TextGame
from nlrl_jax.updates import check_masters, keep_finite, masters


@dataclasses.dataclass(frozen=True)
class LanguagePPOConfig:
    """LLM-PPO; the defaults are the paper's; its symbols are in brackets."""

    num_games: int = option(512, "games per iteration", least=1)
    max_turns: int = option(
        5, "maximum moves of the agent per game; a game that is cut off bootstraps from its last position", least=1
    )
    temperature: float = option(0.7, "divides the scores when moves are sampled, and so in the ratio", above=0)
    actor_learning_rate: float = option(1e-5, "AdamW's learning rate of the language model", above=0)
    critic_learning_rate: float = option(1e-5, "AdamW's learning rate of the value head", above=0)
    weight_decay: float = option(0.01, "AdamW's weight decay", least=0)
    epochs: int = option(1, "passes over the moves of an iteration", least=1)
    batch_size: int = option(16, "moves differentiated at a time", least=1)
    accumulation: int = option(2, "batches per gradient step", least=1)
    clip: float = option(0.2, "clip the ratio to 1 - clip and 1 + clip", above=0)
    value_coef: float = option(0.5, "weight of the squared value error", least=0)
    entropy_coef: float = option(0.01, "weight of the entropy bonus", least=0)
    discount: float = option(0.99, "discount per move [gamma]", least=0, most=1)
    trace_decay: float = option(0.95, "GAE's trace decay [lambda]", least=0, most=1)
    train: str = option(
        "params",
        "params (all weights, which then are float32) or lora (an adapter)",
        choices=("params", "lora"),
    )
    max_grad_norm: float = option(1.0, "clip gradients to this norm, actor and critic each", above=0)
    remat: bool = option(False, "recompute blocks in the backward pass: less memory, same result")

    def __post_init__(self):
        check(self)
        if self.num_games * self.max_turns < 2:
            raise ValueError(
                "num_games and max_turns are both 1: an iteration has one move, but advantages are normalised over its "
                "moves, at least two"
            )


class ValueHead(nn.Module):
    """The critic: hidden states [..., H] -> values within (-1, 1), float32 [...]."""

    width: int

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        x = nn.relu(nn.Dense(self.width)(hidden.astype(jnp.float32)))
        return jnp.tanh(nn.Dense(1, kernel_init=nn.initializers.zeros)(x))[..., 0]


def value_head(model: Transformer) -> ValueHead:
    """The critic of a model."""
    return ValueHead(model.config.hidden_size)


@flax.struct.dataclass
class LanguagePPOState:
    """params: the model's weights. lora: the adapter or None. critic: the value head's. train: "params" or "lora"."""

    params: Any
    lora: Any
    critic: Any
    opt_state: Any
    iteration: jax.Array
    train: str = flax.struct.field(pytree_node=False, default="params")

    @property
    def variables(self) -> dict[str, Any]:
        """The model's variables."""
        return {"params": self.params} | ({} if self.lora is None else {"lora": self.lora})

    def learned(self) -> dict[str, Any]:
        """The contents of a checkpoint: all but frozen weights."""
        names = (self.train, "critic", "opt_state", "iteration")
        return {name: getattr(self, name) for name in names}


def optimizer(config: LanguagePPOConfig) -> optax.GradientTransformation:
    """AdamW over {"actor", "critic"}, each with its own rate and its own clipping."""

    def adamw(rate):
        return optax.chain(
            optax.clip_by_global_norm(config.max_grad_norm), optax.adamw(rate, weight_decay=config.weight_decay)
        )

    parts = {"actor": adamw(config.actor_learning_rate), "critic": adamw(config.critic_learning_rate)}
    return optax.multi_transform(parts, {"actor": "actor", "critic": "critic"})


def init_state(model: Transformer, params: Any, config: LanguagePPOConfig, key: jax.Array) -> LanguagePPOState:
    """The model unchanged (its weights as float32 if they learn), a critic that is 0 everywhere, a fresh optimizer; on
    the model's mesh, if it has one."""
    key_lora, key_critic = jax.random.split(key)
    lora = placement.fresh_lora(model, key_lora) if config.train == "lora" else None
    params = params if config.train == "lora" else masters(params)
    hidden, start = jnp.zeros((1, model.config.hidden_size)), jnp.zeros((), jnp.int32)
    critic = value_head(model).init(key_critic, hidden)["params"]
    if model.mesh is not None:
        critic, start = jax.device_put((critic, start), NamedSharding(model.mesh, PartitionSpec()))
    opt_state = placement.start(
        optimizer(config), {"actor": params if lora is None else lora, "critic": critic}, model.mesh
    )
    return LanguagePPOState(params, lora, critic, opt_state, start, config.train)


def layout(model: Transformer, state: LanguagePPOState, config: LanguagePPOConfig) -> LanguagePPOState | None:
    """How a state, or its shapes, lies on the model's mesh: NamedShardings in its structure; None without a mesh."""
    if model.mesh is None:
        return None
    whole = NamedSharding(model.mesh, PartitionSpec())
    places, critic = placement.of_variables(model, state.variables), jax.tree.map(lambda _: whole, state.critic)
    learned = {"actor": places[config.train], "critic": critic}
    opt_state = placement.of_optimizer(optimizer(config), state.opt_state, learned, model.mesh)
    return state.replace(
        params=places["params"], lora=places.get("lora"), critic=critic, opt_state=opt_state, iteration=whole
    )


def play(
    policy: MovePolicy, game: TextGame, state: LanguagePPOState, key: jax.Array, num: int, max_turns: int = 5
) -> dict[str, jax.Array]:
    """Greedy play: `results` over `num` games. Pure; jit it over `state` and `key`."""

    def nothing(hidden):
        return jnp.zeros(hidden.shape[:1])

    acting = placement.gathered(policy.model, state.variables)
    return results(play_games(policy, game, acting, nothing, key, num, max_turns, temperature=0.0)[0])


class MoveRows(NamedTuple):
    """Moves to learn from, with any leading axes, their advantages and their value targets."""

    moves: Moves
    advantage: jax.Array
    target: jax.Array


def make_rows(moves: Moves, cut_value: jax.Array, config: LanguagePPOConfig) -> MoveRows:
    """Advantages (mean 0, deviation 1 over the active moves) and value targets of the moves [T, B], by GAE.

    Rows that are not active mean nothing.
    """
    # Where a game stopped without an end, its last position's value follows (`cut_value`), not 0.
    discounts = jnp.where(moves.terminated, 0.0, config.discount)

    def after(rows, last):
        return jnp.concatenate([rows[1:], last[None]])

    goes_on = after(moves.active, jnp.zeros_like(moves.active[0]))
    following = jnp.where(goes_on, after(moves.value, cut_value), cut_value)
    advantages, targets = gae(moves.reward, discounts, moves.value, following, config.trace_decay, ~goes_on)
    # Over the active moves alone: rows after a game's end are padding.
    mean = jnp.mean(advantages, where=moves.active)
    deviation = jnp.std(advantages, where=moves.active)
    return MoveRows(moves, (advantages - mean) / (deviation + 1e-8), targets)


def shuffle(key: jax.Array, rows: MoveRows, config: LanguagePPOConfig) -> MoveRows:
    """Rows [T, B, ...] in random order as [steps, accumulation, batch_size, ...], the inactive ones last."""
    active = rows.moves.active.reshape(-1)
    # Uniform numbers below 1 shuffle the active rows; 2.0 puts all others behind them.
    order = jnp.argsort(jnp.where(active, jax.random.uniform(key, active.shape), 2.0))
    size = config.accumulation * config.batch_size
    steps = -(-active.size // size)

    def lay_out(x):
        x = flat_steps(x)[order]
        x = jnp.pad(x, ((0, steps * size - active.size),) + ((0, 0),) * (x.ndim - 1))
        return x.reshape(steps, config.accumulation, config.batch_size, *x.shape[1:])

    return jax.tree.map(lay_out, rows)


def move_loss(
    policy: MovePolicy, config: LanguagePPOConfig, learned: Any, frozen: Any, rows: MoveRows, weights: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The PPO loss of B moves, as a sum, and its metrics.

    Args:
      learned: {"actor", "critic"}. frozen: the model's other variables.
      rows: leading axis [B]. weights: [B], 0 for padding.
    """
    variables, moves = {**frozen, config.train: learned["actor"]}, rows.moves
    lengths = jnp.maximum(moves.lengths, 1)  # padding has no token to predict from, and weighs nothing
    scores, hidden = policy.forward(variables, policy.prefix(variables), moves.prompts, lengths)
    log_probs = move_log_probs(scores, moves.legal, config.temperature)
    # 0 log 0 = 0 for moves that are not legal, whose log-probability is -inf.
    entropy = -jnp.sum(jnp.where(moves.legal, jnp.exp(log_probs) * log_probs, 0.0), axis=-1)
    # The critic's error stops at the hidden state: it does not reach the actor's weights.
    value = value_head(policy.model).apply({"params": learned["critic"]}, jax.lax.stop_gradient(hidden))
    log_prob = jnp.take_along_axis(log_probs, moves.action[:, None], axis=-1)[:, 0]
    return losses.ppo(
        log_prob, moves.log_prob, rows.advantage, value, rows.target, entropy, weights,
        clip=config.clip, value_coef=config.value_coef, entropy_coef=config.entropy_coef,
    )  # fmt: skip


def gradient_step(
    policy: MovePolicy, config: LanguagePPOConfig, carry: tuple[Any, Any], rows: MoveRows, frozen: Any
) -> tuple[tuple[Any, Any], dict[str, jax.Array]]:
    """One AdamW step on the rows [accumulation, batch_size, ...]. carry: (learned, optimizer's state)."""
    learned, opt_state = carry
    active = rows.moves.active
    # A mean over all moves of the gradient step, though they are differentiated a batch at a time.
    weights = active / jnp.maximum(jnp.sum(active), 1)
    grad_of = jax.value_and_grad(functools.partial(move_loss, policy, config), has_aux=True)
    shapes = jax.eval_shape(grad_of, learned, frozen, jax.tree.map(lambda x: x[0], rows), weights[0])
    nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def add(total, batch):
        return jax.tree.map(jnp.add, total, grad_of(learned, frozen, *batch)), None

    ((loss, metrics), grads), _ = jax.lax.scan(add, nothing, (rows, weights))
    updates, opt_state = optimizer(config).update(grads, opt_state, learned)
    metrics = {"loss": loss, **metrics, "grad_norm": optax.tree.norm(grads)}
    return (optax.apply_updates(learned, updates), opt_state), metrics


def learn(
    policy: MovePolicy, config: LanguagePPOConfig, state: LanguagePPOState, rows: MoveRows, key: jax.Array
) -> tuple[LanguagePPOState, dict[str, jax.Array]]:
    """`epochs` passes over the rows [T, B, ...] in random order; metrics are means over the steps that were taken."""
    frozen = {name: value for name, value in state.variables.items() if name != config.train}
    carry = {"actor": getattr(state, config.train), "critic": state.critic}, state.opt_state

    def step(carry, rows):
        return gradient_step(policy, config, carry, rows, frozen)

    def step_or_nothing(carry, rows):
        shapes = jax.eval_shape(step, carry, rows)[1]

        def skip(carry, _):
            return carry, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

        # A step without an active move changes nothing, not even the optimizer's state.
        do = jnp.any(rows.moves.active)
        carry, metrics = jax.lax.cond(do, step, skip, carry, rows)
        return carry, {**metrics, "steps": do.astype(jnp.float32)}

    by_epoch = []
    for epoch in range(config.epochs):
        batches = shuffle(jax.random.fold_in(key, epoch), rows, config)
        carry, metrics = jax.lax.scan(step_or_nothing, carry, batches)
        by_epoch.append(metrics)
    metrics = jax.tree.map(lambda *x: jnp.sum(jnp.stack(x)), *by_epoch)
    steps = metrics.pop("steps")
    metrics = {name: value / steps for name, value in metrics.items()}
    learned, opt_state = carry
    state = state.replace(**{config.train: learned["actor"]}, critic=learned["critic"], opt_state=opt_state)
    return state, {**metrics, "gradient_steps": steps}


def make_update(
    policy: MovePolicy, game: TextGame, config: LanguagePPOConfig
) -> Callable[[LanguagePPOState, jax.Array], tuple[LanguagePPOState, dict[str, jax.Array]]]:
    """One iteration as a pure function `update(state, key) -> (state, metrics)`; jit it.

    Metrics: those of `losses.ppo` and "grad_norm" as means over the gradient steps, `results` of the games, "moves".
    A non-finite loss or gradient leaves the state as it was and sets `metrics["finite"]` to 0.

    Raises:
      ValueError: from the update, weights below float32 that learn (see `updates.masters`).
    """
    learner = dataclasses.replace(policy, model=policy.model.clone(remat=config.remat))

    def update(state: LanguagePPOState, key: jax.Array) -> tuple[LanguagePPOState, dict[str, jax.Array]]:
        check_masters(getattr(state, config.train))
        key_play, key_order = jax.random.split(key)

        def value_of(hidden):
            return value_head(policy.model).apply({"params": state.critic}, hidden)

        # 1. Play; all games in lockstep, all turns in one scan.
        acting = placement.gathered(policy.model, state.variables)
        moves, cut_value = play_games(
            policy, game, acting, value_of, key_play, config.num_games, config.max_turns, config.temperature
        )
        # 2. Advantages and value targets. 3. Gradient steps.
        state, metrics = learn(learner, config, state, make_rows(moves, cut_value, config), key_order)
        finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["grad_norm"])
        state = state.replace(iteration=state.iteration + 1)
        return state, {**metrics, **results(moves), "moves": jnp.sum(moves.active), "finite": finite}

    def in_place(state, key):
        """What an update leaves lies where `init_state` laid it, so that the next one is the same program."""
        places = layout(policy.model, state, config)
        state, metrics = keep_finite(update)(state, key)
        return (state if places is None else jax.lax.with_sharding_constraint(state, places)), metrics

    return in_place
