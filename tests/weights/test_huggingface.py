"""Hugging Face folders: round trips, shards, dtypes, and an error with a name for each thing that can be wrong."""

import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.weights import huggingface, layout, peft
from nlrl_jax.weights.tensors import Tensors, remove_weights
from tests.lm.test_transformer import merge_lora

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
FAMILIES = ("llama", "llama31", "qwen2", "qwen2_tied", "qwen3", "qwen3_moe", "mistral", "gemma", "gemma3", "qwen3_5")


def equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture
def folder(tmp_path):
    """A writable copy of the untied Qwen2 checkpoint."""
    return pathlib.Path(shutil.copytree(GOLDENS / "qwen2", tmp_path / "model"))


def edit_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def edit_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("name", FAMILIES)
def test_saved_tensors_equal_the_original_by_name(name, tmp_path):
    config, params = huggingface.load(GOLDENS / name)
    huggingface.save(tmp_path, config, params)
    want, got = load_file(GOLDENS / name / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert want.keys() == got.keys()
    for tensor in want:
        np.testing.assert_array_equal(want[tensor], got[tensor], err_msg=tensor)
    again, loaded = huggingface.load(tmp_path)
    assert again == config
    equal(loaded, params)


@pytest.mark.parametrize("name", FAMILIES)
def test_tree_is_the_one_the_decoder_declares(name):
    config, params = huggingface.load(GOLDENS / name)
    found = {path: leaf.shape for path, leaf in layout.flatten_dict(params).items()}
    assert found == layout.shapes(config)


def test_sharded_save_and_load(folder, tmp_path):
    config, params = huggingface.load(folder)
    huggingface.save(tmp_path / "out", config, params, max_shard_bytes=20_000)
    files = sorted(p.name for p in (tmp_path / "out").glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors" and len(files) > 2
    assert max((tmp_path / "out" / f).stat().st_size for f in files) < 25_000
    equal(huggingface.load(tmp_path / "out")[1], params)
    huggingface.save(tmp_path / "out", config, params)  # the old shards and index go
    assert [p.name for p in (tmp_path / "out").glob("model*")] == ["model.safetensors"]


def test_bfloat16_stays_unless_another_dtype_is_requested(folder):
    edit_tensors(folder, lambda t: t.update({k: v.astype(jnp.bfloat16) for k, v in t.items()}))
    config, params = huggingface.load(folder)
    assert (config.param_dtype, config.dtype) == ("bfloat16", "bfloat16")
    assert {x.dtype.name for x in jax.tree.leaves(params)} == {"bfloat16"}
    config, params32 = huggingface.load(folder, param_dtype="float32")
    assert (config.param_dtype, config.dtype) == ("float32", "float32")
    equal(params32, jax.tree.map(lambda x: x.astype(jnp.float32), params))
    config, _ = huggingface.load(folder, dtype="float32", lora=LoraConfig(rank=2))
    assert (config.param_dtype, config.dtype, config.lora.rank) == ("bfloat16", "float32", 2)


def test_bfloat16_round_trip(folder, tmp_path):
    config, params = huggingface.load(folder, param_dtype="bfloat16")
    huggingface.save(tmp_path / "out", config, params)
    again, loaded = huggingface.load(tmp_path / "out")
    assert again.param_dtype == "bfloat16"
    equal(loaded, params)


def test_merged_save(folder, tmp_path):
    config, params = huggingface.load(folder)
    config, lora = peft.load(GOLDENS / "adapter", config)
    huggingface.save(tmp_path / "out", config, params, lora=lora)
    _, loaded = huggingface.load(tmp_path / "out")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), loaded, merge_lora(config, params, lora))


def test_eos_ids_and_tokenizer_are_written(folder, tmp_path):
    class Tokenizer:
        eos_ids = (2, 7)

        def save_pretrained(self, folder):
            (pathlib.Path(folder) / "tokenizer.json").write_text("{}")

    config, params = huggingface.load(folder)
    assert huggingface.read_eos_ids(folder) == (2,)
    huggingface.save(tmp_path / "out", config, params, Tokenizer())
    assert huggingface.read_eos_ids(tmp_path / "out") == (2, 7)
    assert (tmp_path / "out" / "tokenizer.json").exists()
    huggingface.save(tmp_path / "none", config, params)
    assert huggingface.read_eos_ids(tmp_path / "none") == ()
    assert not (tmp_path / "none" / "generation_config.json").exists()


def head_of(folder):
    return load_file(folder / "model.safetensors")["lm_head.weight"]


def test_a_separate_head_is_used_even_if_the_config_ties_it(folder, tmp_path):
    head = head_of(folder)
    edit_config(folder, tie_word_embeddings=True)  # what transformers 5 does: it warns and does not tie
    with pytest.warns(UserWarning, match="lm_head.weight differs from model.embed_tokens.weight; it is used"):
        config, params = huggingface.load(folder)
    assert not config.tie_embeddings
    np.testing.assert_array_equal(params["lm_head"], head.T)
    huggingface.save(tmp_path / "out", config, params)
    equal(huggingface.load(tmp_path / "out")[1], params)


def test_a_head_that_is_the_embedding_stays_tied(folder):
    edit_config(folder, tie_word_embeddings=True)
    edit_tensors(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
    config, params = huggingface.load(folder)
    assert config.tie_embeddings and "lm_head" not in params


def test_a_head_alone_is_the_embedding_too(folder):
    head = head_of(folder)
    edit_config(folder, tie_word_embeddings=True)
    edit_tensors(folder, lambda t: t.pop("model.embed_tokens.weight"))
    config, params = huggingface.load(folder)
    assert config.tie_embeddings and "lm_head" not in params
    np.testing.assert_array_equal(params["embedding"], head)


def test_an_untied_head_may_equal_the_embedding(folder):
    edit_tensors(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
    assert "lm_head" in huggingface.load(folder)[1]


@pytest.mark.parametrize("stated", ["float32", "bfloat16", "float16", None])
def test_several_dtypes_in_one_checkpoint(folder, stated):
    names = load_file(folder / "model.safetensors").keys()
    half = {n: jnp.float16 if "embed" in n else jnp.bfloat16 for n in names}
    edit_tensors(folder, lambda t: t.update({n: t[n].astype(half[n]) for n in t}))
    edit_config(folder, dtype=stated)
    reason = "as config.json says" if stated else "which holds them all"
    with pytest.warns(
        UserWarning, match=f"are bfloat16 and float16; they are loaded as {stated or 'float32'}, {reason}"
    ):
        config, params = huggingface.load(folder)
    assert config.param_dtype == params["embedding"].dtype.name == (stated or "float32")


def test_a_number_that_float16_cannot_hold_is_refused(folder):
    edit_tensors(folder, lambda t: t["model.layers.1.mlp.up_proj.weight"].__setitem__((3, 4), -1e6))
    assert huggingface.load(folder, param_dtype="bfloat16")[1]["blocks"]["up"]["kernel"].min() < -9e5
    with pytest.raises(ValueError, match="blocks/up/kernel of layer 1 holds -1e.06, which float16 .at most 65504"):
        huggingface.load(folder, param_dtype="float16")


def test_what_float16_can_hold_is_not_refused(folder):
    extremes = [65519.0, -65504.0]  # the first rounds to 65504
    edit_tensors(folder, lambda t: t["model.norm.weight"].__setitem__(slice(2), extremes))
    scale = huggingface.load(folder, param_dtype="float16")[1]["final_norm"]["scale"]
    np.testing.assert_array_equal(scale[:2], [65504.0, -65504.0])


@pytest.mark.parametrize("stored", [np.float32, jnp.bfloat16, np.float16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["model.layers.1.self_attn.k_proj.weight", "model.embed_tokens.weight"])
def test_a_number_that_is_not_finite_is_refused_with_its_tensor(folder, name, value, stored):
    edit_tensors(folder, lambda t: t.update({n: t[n].astype(stored) for n in t}))
    huggingface.load(folder)
    edit_tensors(folder, lambda t: t[name].__setitem__((-1, -1), value))
    with pytest.raises(ValueError, match=f"{folder}: {name} holds {value:g}, which is no number"):
        huggingface.load(folder, dtype="float32")


def test_rotary_buffers_of_old_files_are_ignored(folder):
    for name in ("inv_freq", "cos_cached"):
        buffer = {f"model.layers.0.self_attn.rotary_emb.{name}": np.ones(4, np.float32)}
        edit_tensors(folder, lambda t, buffer=buffer: t.update(buffer))
    huggingface.load(folder)


TEXT_PART = {"on the Hub": "language_model.model.", "as transformers 5 writes it": "model.language_model."}


@pytest.mark.parametrize("prefix", TEXT_PART.values(), ids=TEXT_PART)
def test_the_text_part_of_a_model_that_sees(tmp_path, prefix):
    vision = "vision_tower.x" if prefix.startswith("language") else "model.vision_tower.x"
    folder = pathlib.Path(shutil.copytree(GOLDENS / "gemma3", tmp_path / "model"))
    tensors = {name.replace("model.", prefix, 1): x for name, x in load_file(folder / "model.safetensors").items()}
    save_file({**tensors, vision: np.ones(3, np.float32)}, folder / "model.safetensors")
    text = json.loads((GOLDENS / "gemma3" / "config.json").read_text())
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text}
    (folder / "config.json").write_text(json.dumps(whole))
    with pytest.warns(UserWarning, match="1 tensors for images or MTP are skipped; the text part is loaded"):
        config, params = huggingface.load(folder)
    assert config == huggingface.load(GOLDENS / "gemma3")[0]
    equal(params, huggingface.load(GOLDENS / "gemma3")[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("lm_head.weight"), r"lm_head.weight missing \(tie_word_embeddings is false"),
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "tensor model.layers.1.mlp.up_proj.weight missing"),
        (lambda t: t.update({"score.weight": np.ones((2, 32), np.float32)}), "tensor score.weight unexpected"),
        (
            lambda t: t.update({"model.norm.weight": np.ones(31, np.float32)}),
            r"model.norm.weight has shape \(31,\); config.json calls for \(32,\)",
        ),
        (lambda t: t.update({"model.norm.weight": np.ones(32, np.int8)}), "model.norm.weight has dtype I8"),
    ],
)
def test_wrong_tensors_are_named(folder, change, message):
    edit_tensors(folder, change)
    with pytest.raises(ValueError, match=message):
        huggingface.load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 1, "layer_types": None}, r"model.layers.1.* and \d+ more unexpected"),
        ({"vocab_size": 70}, r"embed_tokens.weight has shape \(64, 32\); config.json calls for \(70, 32\)"),
        ({"num_hidden_layers": 10**9, "layer_types": None}, "calls for 1000000000 layers, which its .* tensors,"),
        ({"num_hidden_layers": 10**9}, r"layer_types=\['full_attention', .* is not implemented"),
        ({"vocab_size": 10**9}, "calls for 1000000000 tokens, which its .* tensors, of sizes up to 64, cannot hold"),
        ({"hidden_size": 10**9, "head_dim": 8}, "calls for 1000000000 hidden numbers"),
        ({"intermediate_size": 10**9}, "calls for 1000000000 intermediate numbers"),
        ({"head_dim": 10**9}, "calls for 4000000000 numbers for all heads"),
        ({"num_attention_heads": 10**9, "head_dim": 8}, "calls for 8000000000 numbers for all heads"),
        ({"vocab_size": 2**31}, "vocab_size is 2147483648; it must be a whole number from 1 to 2147483647"),
        ({"max_position_embeddings": 10**30}, "max_position_embeddings is 1000.*; it must be a whole number from 1"),
        ({"hidden_size": 32.0}, "hidden_size is 32.0; it must be a whole number"),
        ({"num_key_value_heads": True}, "num_key_value_heads is True; it must be a whole number"),
        ({"num_attention_heads": [4]}, r"num_attention_heads is \[4\]; it must be a whole number"),
        ({"layer_types": "full_attention"}, "layer_types='full_attention' is not implemented"),
    ],
)
def test_a_config_of_another_size_is_refused(folder, changes, message):
    edit_config(folder, **changes)
    with pytest.raises(ValueError, match=message):
        huggingface.load(folder)


def test_folders_without_weights(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        huggingface.load(tmp_path / "nowhere")
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"no model.safetensors .* it holds config.json"):
        huggingface.load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(FileNotFoundError, match=r"pickled weights only \(pytorch_model.bin\)"):
        huggingface.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"no config.json; it holds .*pytorch_model.bin"):
        huggingface.load(folder)


def test_index_that_does_not_fit_its_shards(folder, tmp_path):
    config, params = huggingface.load(folder)
    huggingface.save(tmp_path / "out", config, params, max_shard_bytes=20_000)
    index = tmp_path / "out" / "model.safetensors.index.json"
    contents = json.loads(index.read_text())
    first = contents["weight_map"]["model.embed_tokens.weight"]
    moved = {**contents["weight_map"], "lm_head.weight": first}
    index.write_text(json.dumps({"weight_map": moved}))
    with pytest.raises(ValueError, match=f"'lm_head.weight' in {first}"):
        huggingface.load(tmp_path / "out")
    index.write_text(json.dumps(contents))
    (tmp_path / "out" / first).unlink()
    with pytest.raises(FileNotFoundError, match=f"names {first}, not in the folder"):
        huggingface.load(tmp_path / "out")


def index_naming(folder, file):
    """A folder whose index places everything in `file`."""
    folder.mkdir(exist_ok=True)
    names = load_file(GOLDENS / "qwen2" / "model.safetensors").keys()
    shutil.copy(GOLDENS / "qwen2" / "config.json", folder)
    (folder / "model.safetensors").unlink(missing_ok=True)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(names, file)}))


@pytest.mark.parametrize(
    "file",
    ["../o.safetensors", "/ABSOLUTE", "a/../../o.safetensors", "link/o.safetensors", "notes.txt", 7, None, "", ".."],
)
def test_an_index_names_safetensors_inside_its_folder_only(file, tmp_path):
    outside = pathlib.Path(shutil.copy(GOLDENS / "qwen2" / "model.safetensors", tmp_path / "o.safetensors"))
    folder = tmp_path / "model"
    index_naming(folder, str(outside) if file == "/ABSOLUTE" else file)
    (folder / "link").symlink_to(tmp_path)
    (folder / "notes.txt").write_bytes(outside.read_bytes())
    before = sorted(folder.iterdir())
    with pytest.raises(ValueError, match="index.json places tensor .* only .safetensors files inside the folder"):
        huggingface.load(folder)
    with pytest.raises(ValueError, match="only .safetensors files inside the folder"):
        huggingface.save(folder, None, {})
    assert outside.exists() and sorted(folder.iterdir()) == before  # nothing deleted, nothing written


def test_an_index_may_name_a_link_or_a_folder_below(tmp_path):
    """As in the Hub's cache, whose files are links. A save removes the links, not what they lead to."""
    outside = pathlib.Path(shutil.copy(GOLDENS / "qwen2" / "model.safetensors", tmp_path / "blob"))
    folder = tmp_path / "model"
    for file in ("a.safetensors", "below/b.safetensors"):
        index_naming(folder, file)
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).symlink_to(outside)
        assert Tensors(folder).shape("model.norm.weight") == (32,)
        remove_weights(folder)
        assert outside.exists() and not (folder / file).exists()


def test_a_damaged_index_stops_a_save_before_it_begins(folder):
    (folder / "model.safetensors.index.json").write_text("{")
    with pytest.raises(ValueError, match="index.json is not valid JSON"):
        huggingface.save(folder, None, {})
    assert (folder / "config.json").exists()


@pytest.mark.parametrize(
    ("file", "contents", "message"),
    [
        ("config.json", b"", "config.json is not valid JSON: it is empty"),
        ("config.json", b'{"vocab_size": 64,', "config.json is not valid JSON: Expecting"),
        ("config.json", b"\xff\xfe\x00", "config.json is not valid JSON"),
        ("config.json", b"[" * 100_000, "config.json is not valid JSON: maximum recursion depth"),
        ("config.json", b"[1]", "config.json holds a JSON list, not an object"),
        ("model.safetensors", b"", "model.safetensors is not a whole safetensors file"),
        ("model.safetensors", b"<!DOCTYPE html><html>404</html>", "model.safetensors is not a whole safetensors file"),
        ("generation_config.json", b"{", "generation_config.json is not valid JSON"),
        ("model.safetensors.index.json", b"{}", "model.safetensors.index.json lacks 'weight_map'"),
    ],
)
def test_damaged_files_are_named(folder, file, contents, message):
    if file.endswith("index.json"):
        (folder / "model.safetensors").unlink()
    (folder / file).write_bytes(contents)
    with pytest.raises(ValueError, match=message) as error:
        huggingface.load(folder)
        huggingface.read_eos_ids(folder)
    assert str(folder / file) in str(error.value) and "\n" not in str(error.value)


def test_weights_cut_off(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="model.safetensors is not a whole safetensors file"):
        huggingface.load(folder)


def test_config_without_a_key(folder):
    file = folder / "config.json"
    contents = json.loads(file.read_text())
    for key in ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads"):
        file.write_text(json.dumps({name: value for name, value in contents.items() if name != key}))
        with pytest.raises(ValueError, match=f"config.json lacks '{key}'"):
            huggingface.load(folder)
    file.write_text(json.dumps({**contents, "hidden_size": "wide", "head_dim": None}))
    with pytest.raises(ValueError, match="config.json: hidden_size is 'wide'; it must be a whole number"):
        huggingface.load(folder)
