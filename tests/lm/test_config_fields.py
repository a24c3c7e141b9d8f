"""Every field of the installed configuration classes: read, refused by name, or known to change no number."""

import dataclasses
import pathlib
import re

import pytest

from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.families import FAMILIES, FULL, SLIDING

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
# What a field may say instead, where its default does not tell.
OTHERS = {
    "layer_types": [[FULL, SLIDING] * 2, [SLIDING] * 4],
    "mlp_only_layers": [[0]],
    "per_layer_config": [{"0": {"num_key_value_heads": 1}}],
    "rope_parameters": [{"rope_type": "default", "rope_theta": 99.0}, {FULL: {"rope_theta": 99.0}}],
    "is_causal": [False],
    "use_bidirectional_attention": [True],
    "num_key_value_heads": [2],
    "max_window_layers": [0],
}
# Read elsewhere: the tokenizer's ids, and the type of weights.
ELSEWHERE = {"pad_token_id", "bos_token_id", "eos_token_id", "dtype"}
# Of training from scratch, of other heads and tasks, or of how transformers computes and what it returns.
HARMLESS = {
    *("initializer_range", "attention_dropout", "router_aux_loss_coef", "output_router_logits"),
    *("id2label", "label2id", "problem_type", "is_encoder_decoder", "chunk_size_feed_forward", "pretraining_tp"),
    *("architectures", "transformers_version", "output_hidden_states", "return_dict", "use_cache"),
}
# Names in a model's code that are no fields of its own, but methods or of the part that sees.
NO_FIELDS = {
    *("get_text_config", "text_config", "vision_config", "image_token_id", "video_token_id", "mm_tokens_per_image"),
    *("depth", "in_channels", "num_heads", "num_position_embeddings", "out_hidden_size", "patch_size"),
    *("spatial_merge_size", "temporal_patch_size"),
}
# A window counts only beside what says which layers have one.
BESIDE = {
    "sliding_window": {"use_sliding_window": True, "max_window_layers": 1},
    "max_window_layers": {"use_sliding_window": True, "sliding_window": 9},
    "use_sliding_window": {"sliding_window": 9, "max_window_layers": 1},
    "layer_types": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
}


def configuration(model_type):
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type]


def names_in(path):
    """Fields of configurations that a file of transformers reads."""
    text = pathlib.Path(path).read_text()
    by_default = re.findall(r'getattr\((?:self\.)?\w*config, "([a-z]\w*)"', text)
    return {*re.findall(r"\bconfig\.([a-z]\w*)", text), *by_default}


def fields(model_type):
    """Name -> default; None of what a model's code reads and its class does not list."""
    import transformers

    folder = pathlib.Path(transformers.__file__).parent
    module = configuration(model_type).__module__.split(".")[-2]
    code = names_in(folder / "models" / module / f"modeling_{module}.py") | names_in(folder / "masking_utils.py")
    listed = {field.name: field.default for field in dataclasses.fields(configuration(model_type))}
    return {**dict.fromkeys(code - NO_FIELDS), **listed}


def others(name, default):
    """Values that a field may have instead of its default."""
    if name in OTHERS:
        return OTHERS[name]
    match default:
        case bool():
            return [not default]
        case int() | float():
            return [2 * default or 1]
        case str():
            return ["other"]
    return [7, 2.0]


def counts(model_type, name, value, beside):
    """Whether a value changes what is read, or it or what must stand beside it is refused by name."""
    base = {"model_type": model_type, **SIZES, **beside}
    try:
        return ModelConfig.from_hf({**base, name: value}) != ModelConfig.from_hf(base)
    except ValueError as error:
        return any(key in str(error) for key in (name, *beside))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_field_is_read_refused_or_known_to_change_no_number(model_type):
    unknown = []
    defaults = fields(model_type)
    for name in defaults.keys() - ELSEWHERE - HARMLESS:
        values = others(name, SIZES.get(name, defaults[name]))
        tried = [counts(model_type, name, value, beside) for value in values for beside in ({}, BESIDE.get(name, {}))]
        if not any(tried):
            unknown.append(name)
    assert not unknown
