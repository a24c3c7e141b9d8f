"""Models in this process, by the names that a command line gives them: as they are, or about to learn."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.session import Session
from nlrl_jax.config import check_seed
from nlrl_jax.lm import placement
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.weights.load import load_model, load_tokenizer


def local_model(
    name: str,
    dtype: str = "",
    lora: LoraConfig | None = None,
    chat: bool = True,
    cache_mb: float = 0.0,
    rows: int = 64,
    mesh: Mesh | None = None,
    templates: TemplateOptions | None = None,
    param_dtype: str = "",
) -> LocalModel:
    """A model in this process; see `weights.load.load_model` for names and `templates`.

    Args:
      dtype: of the computation and the weights; empty keeps the checkpoint's. param_dtype: of the weights alone.
      chat: whether it needs a chat template; without one it can only continue open messages.
      cache_mb, rows: memory of its `Session`, 0 for none, and replies written at once; see `LocalModel`.
      mesh: where its weights lie; the first device if None.

    Raises:
      FileNotFoundError, ValueError: there is no such model, or it has no chat template.
    """
    overrides = {} if lora is None else {"lora": lora}
    dtypes = dtype or None, param_dtype or dtype or None
    loaded = load_model(name, *dtypes, mesh=mesh, templates=templates, **overrides)
    if chat:
        _check_chat(name, loaded.tokenizer)
    network = Transformer(loaded.config, mesh=mesh)
    return LocalModel(network, {"params": loaded.params}, loaded.tokenizer, rows, kv_session=Session(cache_mb))


def trainable_model(
    name: str, dtype: str, train: str, seed: int, mesh: Mesh | None = None, templates: TemplateOptions | None = None
) -> LocalModel:
    """A local model by name, on the mesh or the first device, with a fresh adapter if `train` is "lora".

    Weights that learn are float32, whatever `dtype` computes: small steps would be lost to rounding in bfloat16.
    """
    param_dtype = "" if train == "lora" else "float32"
    base = local_model(name, dtype, LoraConfig(), mesh=mesh, templates=templates, param_dtype=param_dtype)
    if train != "lora":
        return base
    lora = placement.fresh_lora(base.model, jax.random.key(check_seed(seed)))
    return base.with_variables({**base.variables, "lora": lora})


def tokenizer_of(name: str, templates: TemplateOptions | None = None) -> Tokenizer:
    """The tokenizer of a model with a chat template. Errors: see `local_model`."""
    tokenizer = load_tokenizer(name, templates=templates)
    _check_chat(name, tokenizer)
    return tokenizer


def check_templates(templates: TemplateOptions, *names: str) -> None:
    """Refuses chat template variables that no local model among `names` reads.

    Raises:
      FileNotFoundError, ValueError: no such model, or a variable that none of them reads.
    """
    if not templates.variables():
        return
    local = [name for name in dict.fromkeys(names) if name not in ("", "scripted", "endpoint")]
    if not local:
        raise ValueError(
            "--template is for the chat template of a local model, and there is none here; an endpoint takes "
            "--extra 'chat_template_kwargs={\"enable_thinking\": false}', say"
        )
    sources = [load_tokenizer(name).chat_template for name in local]
    templates.check_read([source for source in sources if source], f"the chat template of {' or '.join(local)}")


def _check_chat(name: str, tokenizer: Tokenizer) -> None:
    if tokenizer.chat_template is None:
        raise ValueError(f"{name} has no chat template, so it cannot be prompted; give an instruct model")


def on_device(tree: Any) -> Any:
    """Copies that a state may own and donate: arrays on a mesh stay there, others go to the first device."""

    def copy(leaf):
        on_mesh = isinstance(leaf, jax.Array) and isinstance(leaf.sharding, NamedSharding)
        return jnp.copy(leaf) if on_mesh else jax.device_put(jnp.array(leaf), jax.local_devices()[0])

    return jax.tree.map(copy, tree)
