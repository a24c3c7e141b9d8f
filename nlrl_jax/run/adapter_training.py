"""A LoRA adapter that learns by SFT in `loop.train`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from nlrl_jax.algorithms.sft import Example, SFTBatch, SFTConfig, make_batches, make_sft_step, sft_loss
from nlrl_jax.config import check_seed
from nlrl_jax.lm import placement
from nlrl_jax.lm.transformer import Transformer


@flax.struct.dataclass
class AdapterState:
    """params: frozen. lora: what learns."""

    params: Any
    lora: Any
    opt_state: Any
    iteration: jax.Array

    def learned(self) -> dict[str, Any]:
        return {"lora": self.lora, "opt_state": self.opt_state, "iteration": self.iteration}


def optimizer(learning_rate: float | optax.Schedule) -> optax.GradientTransformation:
    """AdamW on gradients that are clipped to norm 1."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(learning_rate, weight_decay=0.0))


def start(model: Transformer, params: Any, optimizer: optax.GradientTransformation, seed: int) -> AdapterState:
    """The state before the first step, on the model's mesh or the first device: an adapter that changes nothing yet."""
    lora = placement.fresh_lora(model, jax.random.fold_in(jax.random.key(check_seed(seed)), 0))
    if model.mesh is None:
        state = AdapterState(params, lora, optimizer.init(lora), jnp.zeros((), jnp.int32))
        return jax.device_put(state, jax.local_devices()[0])
    iteration = jnp.zeros((), jnp.int32, device=NamedSharding(model.mesh, PartitionSpec()))
    return AdapterState(params, lora, placement.start(optimizer, lora, model.mesh), iteration)


def make_update(
    model: Transformer,
    loss_of: Callable,
    optimizer: optax.GradientTransformation,
    micro_batch: int = 0,
    batch_of: Callable[[Any], Any] = lambda data: data,
) -> Callable:
    """One SFT step on the adapter: a pure (state, given) -> (state, metrics). Arguments: see `sft.make_sft_step`.

    Args:
      batch_of: makes the batch of what the update is given, a key say.
    """
    step = make_sft_step(loss_of, optimizer, "lora", micro_batch, model.mesh)

    def update(state, data):
        variables = {"params": state.params, "lora": state.lora}
        variables, opt_state, metrics = step(variables, state.opt_state, batch_of(data))
        counters = metrics, state.iteration + metrics["finite"]
        lora, opt_state, (metrics, iteration) = placement.stay(
            model, optimizer, "lora", variables["lora"], opt_state, counters
        )
        return state.replace(lora=lora, opt_state=opt_state, iteration=iteration), metrics

    return update


def update_on_examples(
    network: Transformer,
    examples: Sequence[Example],
    optimizer: optax.GradientTransformation,
    batch_size: int,
    seed: int,
    remat: bool,
    micro_batch: int,
) -> Callable[[AdapterState, jax.Array], tuple[AdapterState, dict[str, jax.Array]]]:
    """A compiled update that learns the next batch of passes over examples."""
    batch = batches(examples, batch_size, seed)
    loss = functools.partial(sft_loss, network.clone(remat=remat))
    step = jax.jit(make_update(network, loss, optimizer, micro_batch), donate_argnums=0)

    def update(state, key):
        del key  # the batches are drawn with the seed
        return step(state, batch(int(state.iteration)))

    return update


def batches(examples: Sequence[Example], size: int, seed: int) -> Callable[[int], SFTBatch]:
    """Step -> its batch of `size` rows: passes over all examples, in random batches of similar lengths.

    Rows have one of eight lengths, so eight programs are compiled at most.
    """
    lengths = np.array([len(example.tokens) for example in examples])
    multiple = -(-max(lengths) // 256) * 32
    shape = SFTConfig(batch_size=size, max_length=8 * multiple)

    @functools.lru_cache(maxsize=4)
    def order(epoch: int) -> np.ndarray:
        rng = np.random.default_rng([seed, epoch])
        first = -epoch * len(examples) % size  # these complete the batch in which the pass before ends
        mixed = rng.permutation(len(examples))
        carried, rest = mixed[:first], mixed[first:]
        rest = rest[np.argsort(lengths[rest], kind="stable")]
        rows = [rest[i : i + size] for i in range(0, len(rest), size)]
        whole = [row for row in rows if len(row) == size]
        return np.concatenate([carried, *(whole[i] for i in rng.permutation(len(whole))), *rows[len(whole) :]])

    def batch(step: int) -> SFTBatch:
        places = (divmod(step * size + k, len(examples)) for k in range(size))
        return make_batches(examples, shape, np.array([order(epoch)[i] for epoch, i in places]), multiple)[0]

    return batch
