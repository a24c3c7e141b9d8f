"""Language TD's control: the same positions, variations and bootstrap with a number in place of words.

    critic = ScalarCritic(network, tokenizer, roles.value, sft, batch)
    params = critic.init(base_params, key)
    params, metrics = critic.fit(params, views, targets(buffer, critic.values(params, ends)))

V(s) is the value head of LLM-PPO on the last hidden state of the prompt that the language value model reads, and its
target is the mean over the position's variations of V at their ends, or of the result where the game is over. Values
are player 0's, within (-1, 1).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nlrl_jax.algorithms.language_ppo import value_head
from nlrl_jax.algorithms.language_td import LookAhead
from nlrl_jax.algorithms.sft import SFTConfig, make_sft_step, rate_at
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.roles.board_games import View
from nlrl_jax.types import Chat
from nlrl_jax.updates import masters

_ROWS = 512  # positions valued at once


def ends(buffer: Sequence[LookAhead]) -> list[View]:
    """The different positions in which unfinished variations end."""
    return list(dict.fromkeys(v.steps[-1].after for s in buffer for v in s.variations if not v.over))


def targets(buffer: Sequence[LookAhead], value: Mapping[View, float], player_0: str) -> np.ndarray:
    """TD targets, float32 [N]: each position's mean over its variations of their result or of V at their ends."""
    outcome = lambda line: 0.0 if line.winner is None else 1.0 if line.winner == player_0 else -1.0
    worth = lambda line: outcome(line) if line.over else value[line.steps[-1].after]
    return np.array([np.mean([worth(line) for line in s.variations]) for s in buffer], np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class ScalarCritic:
    """A critic without parameters, which are {"model": the network's, "critic": the value head's}.

    Attributes:
      prompt: view -> chat.
      sft: epochs, learning rate, warm-up and the like are those of the language value model.
      batch: positions per gradient step.
    """

    model: Transformer
    tokenizer: Tokenizer
    prompt: Callable[[View], Chat]
    sft: SFTConfig
    batch: int

    def init(self, params: Any, key: jax.Array) -> dict[str, Any]:
        """The network, its weights as float32, and a head that is 0 everywhere."""
        hidden = jnp.zeros((1, self.model.config.hidden_size))
        return {"model": masters(params), "critic": value_head(self.model).init(key, hidden)["params"]}

    def values(self, params: Any, views: Sequence[View]) -> np.ndarray:
        """V of each view, float32 [N]."""
        tokens, last = self._read(views)
        pad = -len(views) % min(_ROWS, max(len(views), 1))
        tokens, last = np.pad(tokens, ((0, pad), (0, 0))), np.pad(last, (0, pad))
        parts = [
            _values(self.model, params, tokens[i : i + _ROWS], last[i : i + _ROWS]) for i in range(0, len(last), _ROWS)
        ]
        return np.concatenate([*map(np.asarray, parts), np.zeros(0, np.float32)])[: len(views)]

    def fit(self, params: Any, views: Sequence[View], wanted: np.ndarray) -> tuple[Any, dict[str, float]]:
        """Regression with the squared error; what fills no batch is left out of an epoch.

        Returns (params, {"loss": mean of the last epoch, "steps"}).

        Raises:
          ValueError: a non-finite loss.
        """
        tokens, last = self._read(views)
        generator, config = np.random.default_rng(self.sft.seed), self.sft
        size = min(self.batch, len(views))
        steps = len(views) // size
        optimizer, step = _compiled(self.model, config.weight_decay, config.clip_norm, config.b2)
        rate = rate_at(config, steps * config.epochs)
        params = jax.tree.map(jnp.copy, masters(params))  # a step gives away what it is given
        opt_state, done, losses = optimizer.init(params), 0, []
        for _ in range(config.epochs):
            losses, order = [], generator.permutation(len(views))[: steps * size].reshape(steps, size)
            for rows in order:
                opt_state.hyperparams["learning_rate"] = jnp.asarray(rate(done), jnp.float32)
                params, opt_state, metrics = step(params, opt_state, (tokens[rows], last[rows], wanted[rows]))
                losses.append(metrics)
                done += 1
        losses = jax.device_get(losses)
        if not all(metrics["finite"] for metrics in losses):
            raise ValueError(f"the scalar critic met a non-finite loss at learning rate {config.learning_rate}")
        return params, {"loss": float(np.mean([metrics["loss"] for metrics in losses])), "steps": done}

    def _read(self, views: Sequence[View]) -> tuple[np.ndarray, np.ndarray]:
        """(tokens int32 [N, L] padded at the end, index of each prompt's last token [N])."""
        texts = [self.tokenizer.render_chat(self.prompt(view).messages) for view in views]
        rows = [self.tokenizer.encode(text) for text in texts]
        longest = -(-max(map(len, rows), default=1) // 8) * 8
        tokens = np.zeros((len(rows), longest), np.int32)
        for row, ids in zip(tokens, rows):
            row[: len(ids)] = ids
        return tokens, np.array([len(ids) - 1 for ids in rows], np.int32)


def _value_of(model: Transformer, params: Any, tokens: jax.Array, last: jax.Array) -> jax.Array:
    """float32 [B]. No token sees the padding behind it."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    hidden, _ = model.apply({"params": params["model"]}, jnp.asarray(tokens), positions)
    hidden = jnp.take_along_axis(hidden, jnp.asarray(last)[:, None, None], axis=1)[:, 0]
    return value_head(model).apply({"params": params["critic"]}, hidden)


_values = jax.jit(_value_of, static_argnums=0)


@functools.lru_cache(maxsize=4)
def _compiled(model: Transformer, weight_decay: float, clip_norm: float, b2: float):
    """(optimizer, jitted step (params, opt_state, batch) -> (params, opt_state, metrics))."""

    @optax.inject_hyperparams
    def make(learning_rate):
        adamw = optax.adamw(learning_rate, b2=b2, weight_decay=weight_decay)
        return optax.chain(optax.clip_by_global_norm(clip_norm), adamw)

    def loss_of(variables, batch):
        tokens, last, wanted = batch
        return jnp.mean((_value_of(model, variables["params"], tokens, last) - wanted) ** 2), {}

    optimizer = make(learning_rate=0.0)
    step = make_sft_step(loss_of, optimizer, "params")

    def of_params(params, opt_state, batch):
        variables, opt_state, metrics = step({"params": params}, opt_state, batch)
        return variables["params"], opt_state, metrics

    return optimizer, jax.jit(of_params, donate_argnums=(0, 1))
