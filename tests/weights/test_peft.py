"""LoRA adapters in PEFT's format. The logits under a PEFT adapter are compared in tests/lm/test_transformer.py."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.weights import huggingface, peft

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
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
        ({"target_modules": ["c_attn"]}, "c_attn.*q_proj"),
        ({"target_modules": ["q_proj"]}, "unexpected tensors"),
        ({"r": 5}, r"lora_.*has shape.*rank call for"),
    ],
)
def test_refused_by_name(config, folder, change, message):
    edit_config(folder, **change)
    with pytest.raises(ValueError, match=message):
        peft.load(folder, config)


def test_missing_tensor_is_named(config, folder):
    tensors = load_file(folder / "adapter_model.safetensors")
    name = "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"
    del tensors[name]
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=f"1 missing tensors, the first {name}"):
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
    with pytest.raises(ValueError, match="adapter_config.json: r is None; it must be a number"):
        peft.load(folder, config)
