"""LoRA adapters in PEFT's format. The logits under a PEFT adapter are compared in tests/lm/test_transformer.py."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.weights import huggingface, peft
from nlrl_jax.weights.names import LINEAR

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"


@pytest.fixture(scope="module")
def config():
    return huggingface.load(GOLDENS / "qwen2")[0]


@pytest.fixture
def folder(tmp_path):
    return pathlib.Path(shutil.copytree(GOLDENS / "adapter", tmp_path / "adapter"))


def edit_config(folder, **changes):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_saved_tensors_equal_pefts_by_name(config, tmp_path):
    config, lora = peft.load(GOLDENS / "adapter", config)
    assert config.lora == LoraConfig(3, 7.0)
    peft.save(tmp_path, config, lora, base_model="qwen2")
    want = load_file(GOLDENS / "adapter" / "adapter_model.safetensors")
    got = load_file(tmp_path / "adapter_model.safetensors")
    assert want.keys() == got.keys()
    for name in want:
        np.testing.assert_array_equal(want[name], got[name], err_msg=name)
    theirs, ours = (json.loads((f / "adapter_config.json").read_text()) for f in (GOLDENS / "adapter", tmp_path))
    assert {key: theirs[key] for key in ours} == ours


def test_subset_of_modules(config, folder):
    tensors = load_file(folder / "adapter_model.safetensors")
    kept = {k: v for k, v in tensors.items() if "q_proj" in k or "down_proj" in k}
    save_file(kept, folder / "adapter_model.safetensors")
    edit_config(folder, target_modules=["q_proj", "down_proj"])
    config, lora = peft.load(folder, config)
    assert lora["blocks"].keys() == {"attention", "down"} and lora["blocks"]["attention"].keys() == {"q"}
    peft.save(folder / "again", config, lora)
    options = json.loads((folder / "again" / "adapter_config.json").read_text())
    assert options["target_modules"] == ["down_proj", "q_proj"]
    jax.tree.map(np.testing.assert_array_equal, peft.load(folder / "again", config)[1], lora)


def test_rank_stabilised_scaling_becomes_alpha(config, folder):
    edit_config(folder, use_rslora=True)
    assert peft.load(folder, config)[0].lora.alpha == pytest.approx(7 * 3**0.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"use_dora": True}, "use_dora=True"),
        ({"bias": "all"}, "bias='all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 2}}, r"q_proj.lora_A.weight has shape \(3,.*rank call for \(2,"),
        ({"rank_pattern": ["q_proj"]}, r"rank_pattern is \['q_proj'\]; it must be an object"),
        ({"alpha_pattern": {"q_proj": [7]}}, r"alpha_pattern\['q_proj'\] is \[7\]; it must be a number above 0"),
        ({"rank_pattern": {"q_proj": 3.5}}, r"rank_pattern\['q_proj'\] is 3.5; it must be a whole number above 0"),
        ({"rank_pattern": {"(": 3}}, "is malformed"),
        ({"target_modules": [7]}, "target_modules is \\[7\\]; it must be names or an expression"),
        ({"exclude_modules": {"q_proj": 1}}, "exclude_modules is .*; it must be names or an expression"),
        ({"layers_to_transform": [0.0]}, r"layers_to_transform is \[0.0\]; it must be whole numbers"),
        ({"layers_to_transform": True}, r"layers_to_transform is \[True\]; it must be whole numbers"),
        ({"layers_pattern": [3], "layers_to_transform": 0}, "layers_pattern is .3.; it must be names or an expression"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
        ({"target_modules": ["c_attn"]}, "c_attn.*q_proj"),
        ({"target_modules": ["q_proj"]}, r"tensors .* unexpected"),
        ({"target_modules": []}, "names no linear layer"),
        ({"target_modules": 7}, "target_modules is 7; it must be names"),
        ({"target_modules": "("}, "is malformed"),
        ({"target_modules": ["q_proj", "lm_head"]}, "adapts lm_head"),
        ({"target_modules": ".*proj", "layers_to_transform": [0]}, "needs a list as target_modules"),
        ({"layers_pattern": "layers"}, "layers_pattern='layers' needs layers_to_transform"),
        ({"layers_to_transform": 1}, r"tensors .* unexpected"),
        ({"exclude_modules": ["up_proj"]}, r"tensors .* unexpected"),
        ({"use_bdlora": {}}, "use_bdlora={} is not implemented; use_bdlora=None is"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
        ({"lora_alpha": "16"}, "lora_alpha is '16'; it must be a number"),
        ({"r": 3.0}, "r is 3.0; it must be a whole number"),
        ({"r": 5}, r"lora_.*has shape.*rank call for"),
    ],
)
def test_refused_by_name(config, folder, change, message):
    edit_config(folder, **change)
    with pytest.raises(ValueError, match=message):
        peft.load(folder, config)


EVERYTHING = dict.fromkeys(("modules_to_save", "target_parameters", "exclude_modules", "layer_replication"), [])


@pytest.mark.parametrize(
    "change",
    [
        EVERYTHING,
        {"trainable_token_indices": {}, "layers_to_transform": [], "layers_pattern": [], "exclude_modules": ""},
        {"rank_pattern": {"q_proj": 3}, "alpha_pattern": {"up_proj": 7}},
        {"rank_pattern": None, "bias": None, "use_dora": None, "fan_in_fan_out": True, "lora_dropout": 0.1},
        {"target_modules": "All-Linear"},
        {"target_modules": r"model\.layers\.\d+\.(self_attn|mlp)\..*_proj"},
        {"target_modules": [f"{n}_proj" for n in ("self_attn.q", "self_attn.k", "v", "o", "gate", "up", "mlp.down")]},
        {"layers_to_transform": [0, 1], "layers_pattern": "layers"},
        {"exclude_modules": ["lm_head"], "target_modules": r".*proj|lm_head"},
    ],
)
def test_other_ways_to_say_the_same(config, folder, change):
    """As peft 0.21 reads them: the whole adapter, as before."""
    _, want = peft.load(folder, config)
    edit_config(folder, **change)
    jax.tree.map(np.testing.assert_array_equal, peft.load(folder, config)[1], want)


RULES = json.loads((GOLDENS / "peft_rules.json").read_text())  # what peft 0.21.2 adapts in a Llama of three layers
THREE_LAYERS = ModelConfig(8, 8, 8, num_layers=3, num_heads=1, num_kv_heads=1, head_dim=8, max_positions=8)


@pytest.mark.parametrize(("options", "expected"), RULES, ids=range(len(RULES)))
def test_modules_ranks_and_scales_are_pefts(options, expected):
    found = peft._adapted(pathlib.Path("adapter"), options, THREE_LAYERS)
    name = lambda path, place: f"{place[0]}.{LINEAR[path[1:]]}"
    assert {name(*at): [rank, pytest.approx(alpha / rank)] for at, (rank, alpha) in found.items()} == expected


def test_ranks_and_alphas_of_some_modules(config, folder):
    """Of a rank of 2 in layer 0's q and an alpha of 5 in all v: the updates are as the file has them."""
    tensors = load_file(folder / "adapter_model.safetensors")
    for name, tensor in tensors.items():
        if "layers.0.self_attn.q_proj" in name:
            tensors[name] = tensor[:2] if "lora_A" in name else np.ascontiguousarray(tensor[:, :2])
    save_file(tensors, folder / "adapter_model.safetensors")
    edit_config(folder, rank_pattern={"0.self_attn.q_proj": 2, "q_proj": 3}, alpha_pattern={"v_proj": 5})
    loaded, lora = peft.load(folder, config)
    assert loaded.lora == LoraConfig(3, 7.0)
    for module, layer, scale in (("q", 0, 7 / 2), ("q", 1, 7 / 3), ("v", 0, 5 / 3), ("k", 1, 7 / 3)):
        name = f"base_model.model.model.layers.{layer}.self_attn.{module}_proj.lora_"
        expected = scale * (tensors[f"{name}B.weight"] @ tensors[f"{name}A.weight"]).T
        part = lora["blocks"]["attention"][module]
        np.testing.assert_allclose(7 / 3 * part["a"][layer] @ part["b"][layer], expected, rtol=1e-5, atol=1e-7)
    peft.save(folder / "again", loaded, lora)
    jax.tree.map(np.testing.assert_array_equal, peft.load(folder / "again", config)[1], lora)


@pytest.mark.parametrize(
    "change",
    [
        {"target_modules": ["up_proj"], "layers_to_transform": 1},
        {"target_modules": ["model.layers.1.mlp.up_proj", "v_proj"], "layers_to_transform": 7},
        {"target_modules": ["layers.1.mlp.up_proj"]},
        {"target_modules": r".*\.1\..*(up|down)_proj", "exclude_modules": ["down_proj"]},
    ],
)
def test_layers_that_are_not_adapted_are_zero(config, folder, change):
    _, want = peft.load(folder, config)
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file({k: v for k, v in tensors.items() if "layers.1.mlp.up_proj" in k}, folder / "adapter_model.safetensors")
    edit_config(folder, **change)
    _, lora = peft.load(folder, config)
    assert lora["blocks"].keys() == {"up"}
    for part, value in lora["blocks"]["up"].items():
        np.testing.assert_array_equal(value[1], want["blocks"]["up"][part][1])
        assert not np.any(value[0])


def test_without_target_modules_q_and_v_are_adapted(config, folder):
    tensors = load_file(folder / "adapter_model.safetensors")
    kept = {k: v for k, v in tensors.items() if ".q_proj." in k or ".v_proj." in k}
    save_file(kept, folder / "adapter_model.safetensors")
    edit_config(folder, target_modules=None)
    assert peft.load(folder, config)[1]["blocks"]["attention"].keys() == {"q", "v"}


def test_an_unknown_option_is_named(config, folder):
    edit_config(folder, use_something=True, another=None)
    with pytest.warns(UserWarning, match="unknown, and ignored: use_something$"):
        peft.load(folder, config)


def test_a_dtype_that_is_not_read_is_named(config, folder):
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file({k: v.astype(np.float64) for k, v in tensors.items()}, folder / "adapter_model.safetensors")
    with pytest.raises(ValueError, match="lora_A.weight has dtype F64; one of F32, F16, BF16"):
        peft.load(folder, config)


@pytest.mark.parametrize("change", [{}, {"alpha_pattern": {"up_proj": 5}}])
def test_a_number_that_is_not_finite_is_refused_with_its_tensor(config, folder, change):
    tensors, name = (
        load_file(folder / "adapter_model.safetensors"),
        "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight",
    )
    tensors[name][1, 2] = np.nan
    save_file(tensors, folder / "adapter_model.safetensors")
    edit_config(folder, **change)
    with pytest.raises(ValueError, match=f"{folder}: {name} holds nan, which is no number"):
        peft.load(folder, config)


def test_missing_tensor_is_named(config, folder):
    tensors = load_file(folder / "adapter_model.safetensors")
    name = "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"
    del tensors[name]
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=f"tensor {name} missing"):
        peft.load(folder, config)


def test_missing_files_are_named(config, folder):
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"no adapter_model.safetensors \(found: adapter_config.json"):
        peft.load(folder, config)


@pytest.mark.parametrize(
    ("file", "contents", "message"),
    [
        ("adapter_config.json", b"{", "adapter_config.json is not valid JSON"),
        ("adapter_model.safetensors", b"<html>", "adapter_model.safetensors is not a whole safetensors file"),
    ],
)
def test_damaged_files_are_named(config, folder, file, contents, message):
    (folder / file).write_bytes(contents)
    with pytest.raises(ValueError, match=message):
        peft.load(folder, config)


def test_config_without_a_key(config, folder):
    edit_config(folder, r=None)
    with pytest.raises(ValueError, match="adapter_config.json: r is None; it must be a whole number"):
        peft.load(folder, config)
