"""Weights go between files and devices in pieces: each byte is read once, by who needs it; tensors are written singly.

tests/conftest.py splits the CPU into eight devices.
"""

import dataclasses
import json
import math
import pathlib
import re
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import load_file

from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.sharding import make_mesh, shard
from nlrl_jax.lm.transformer import Transformer, init_lora, init_params, param_specs
from nlrl_jax.weights import huggingface, layout, peft, safetensors_file
from nlrl_jax.weights.safetensors_file import SafetensorsFile
from tests.lm.noise import noisy, noisy_params

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
CONFIG = ModelConfig(
    64, 32, 40, 5, 4, 2, 8, 64, architecture="Qwen2ForCausalLM", qkv_bias=True, lora=LoraConfig(4, 8.0)
)


def equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture(scope="module")
def params():
    return noisy_params(CONFIG, 0.15, 0)["params"]


@pytest.fixture(scope="module")
def lora():
    return noisy(init_lora(Transformer(CONFIG), jax.random.key(1)), 0.15)


@pytest.fixture
def folder(params, tmp_path):
    huggingface.save(tmp_path / "model", CONFIG, params, max_shard_bytes=20_000)
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 2
    return tmp_path / "model"


@pytest.fixture
def mesh():
    if jax.device_count() != 8:
        pytest.skip(f"needs 8 devices, there are {jax.device_count()}")
    return make_mesh(data=2, fsdp=2, tensor=2)


@pytest.fixture
def reads(monkeypatch):
    """Every part of a file that is read: (tensor, its bounds, bytes)."""
    found = []
    read = SafetensorsFile.read

    def noted(self, name, index):
        part = read(self, name, index)
        bounds = tuple(s.indices(size)[:2] for s, size in zip(index, self.shape(name), strict=True))
        found.append((name, bounds, part.nbytes))
        return part

    monkeypatch.setattr(SafetensorsFile, "read", noted)
    return found


@pytest.mark.parametrize("piece_bytes", [1, 12_000, layout.PIECE_BYTES])
def test_devices_read_their_slices_once(folder, params, mesh, reads, piece_bytes, monkeypatch):
    monkeypatch.setattr(layout, "PIECE_BYTES", piece_bytes)  # a layer, a few layers with a rest, or all at once
    _, loaded = huggingface.load(folder, mesh=mesh)
    equal(loaded, params)
    assert sum(size for _, _, size in reads) == 4 * CONFIG.num_params  # all of the files, in spite of two replicas
    assert len({part[:2] for part in reads}) == len(reads)
    up = [bounds for name, bounds, _ in reads if name == "model.layers.0.mlp.up_proj.weight"]
    assert sorted(up) == [((a, a + 20), (b, b + 16)) for a in (0, 20) for b in (0, 16)]  # [40, 32] over tensor x fsdp
    assert loaded["blocks"]["up"]["kernel"].sharding.shard_shape((5, 32, 40)) == (5, 16, 20)


def test_pieces_on_one_device(folder, params, monkeypatch):
    monkeypatch.setattr(layout, "PIECE_BYTES", 12_000)
    equal(huggingface.load(folder)[1], params)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    equal(huggingface.load(folder, param_dtype="bfloat16")[1], half)


def test_a_model_on_a_mesh_is_saved_as_one_on_a_device(folder, params, lora, mesh, tmp_path):
    specs = param_specs(Transformer(CONFIG))
    there, adapter = shard(params, specs["params"], mesh), shard(lora, specs["lora"], mesh)
    huggingface.save(tmp_path / "mesh", CONFIG, there, max_shard_bytes=20_000)
    for file in folder.iterdir():
        assert (tmp_path / "mesh" / file.name).read_bytes() == file.read_bytes()
    huggingface.save(tmp_path / "merged", CONFIG, params, lora=lora)
    huggingface.save(tmp_path / "merged_mesh", CONFIG, there, lora=adapter)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("merged", "merged_mesh"))
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(other[name], one[name], atol=1e-6, rtol=0)
    peft.save(tmp_path / "adapter", CONFIG, adapter)
    equal(peft.load(tmp_path / "adapter", CONFIG, mesh)[1], lora)


def test_arrays_of_the_host_are_saved(folder, params, tmp_path):
    huggingface.save(tmp_path / "host", CONFIG, jax.tree.map(np.asarray, params), max_shard_bytes=20_000)
    for file in folder.iterdir():
        assert (tmp_path / "host" / file.name).read_bytes() == file.read_bytes()


def test_processes_exchange_one_layer_of_a_parameter(mesh):
    place = lambda *axes: NamedSharding(mesh, PartitionSpec(None, *axes))
    kernel = jax.device_put(jnp.ones((5, 32, 40)), place("fsdp", "tensor"))
    a, b = (
        jax.device_put(jnp.ones((5, 32, 4)), place("fsdp")),
        jax.device_put(jnp.ones((5, 4, 40)), place(None, "tensor")),
    )
    for arrays in ((kernel,), (kernel, a, b)):
        places = layout.shardings_at(arrays, (1,))
        program = layout._take.lower(arrays, (1,), CONFIG, True, None, places, True).compile().as_text()
        exchanged = re.findall(r"= \w+\[([\d,]+)\]\S* (?:all-gather|all-reduce|all-to-all|collective-permute)", program)
        assert exchanged and max(math.prod(map(int, shape.split(","))) for shape in exchanged) == 32 * 40


def test_numbers_of_two_sizes_lie_where_they_can_be_read(tmp_path):
    odd = dataclasses.replace(CONFIG, vocab_size=63, hidden_size=31)
    mixed = jax.tree.map(lambda x: x.astype(jnp.bfloat16), init_params(Transformer(odd), jax.random.key(0)))
    mixed["blocks"]["attention_norm"]["scale"] = jnp.arange(5 * 31, dtype=jnp.float32).reshape(5, 31)
    huggingface.save(tmp_path, odd, mixed)
    raw = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    begins = [entry["data_offsets"][0] + 8 + length for entry in header.values() if entry.get("dtype") == "F32"]
    assert len(begins) == 5 and all(begin % 4 == 0 for begin in begins)
    tensors = load_file(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(tensors["model.layers.1.input_layernorm.weight"], np.arange(31, 62))
    np.testing.assert_array_equal(tensors["model.embed_tokens.weight"], mixed["embedding"])


class Killed(BaseException):
    """Nobody catches it."""


@pytest.mark.parametrize("after", [0, 3, 30])
def test_a_save_that_stops_midway_leaves_the_model_before_it(folder, params, after, monkeypatch):
    take, done = layout.take, []

    def fail(*args, **kwargs):
        if len(done) == after:
            raise Killed
        done.append(1)
        return take(*args, **kwargs)

    monkeypatch.setattr(layout, "take", fail)
    with pytest.raises(Killed):
        huggingface.save(folder, CONFIG, jax.tree.map(lambda x: 2 * x, params), max_shard_bytes=20_000)
    equal(huggingface.load(folder)[1], params)
    monkeypatch.setattr(layout, "take", take)
    huggingface.save(folder, CONFIG, params)
    assert not list(folder.glob(".*")) and not list(folder.glob("model-*"))


@pytest.mark.parametrize("renamed", [0, 1, 2])
def test_a_save_that_stops_between_two_names_is_refused(folder, params, renamed, monkeypatch):
    replace, done = huggingface.os.replace, []

    def fail(source, target):
        if len(done) == renamed:
            raise Killed
        done.append(1)
        replace(source, target)

    monkeypatch.setattr(huggingface.os, "replace", fail)
    with pytest.raises(Killed):
        huggingface.save(folder, CONFIG, jax.tree.map(lambda x: 2 * x, params), max_shard_bytes=20_000)
    with pytest.raises(FileNotFoundError, match="no config.json"):
        huggingface.load(folder)


def test_an_adapter_that_stops_midway_leaves_the_one_before_it(lora, tmp_path, monkeypatch):
    peft.save(tmp_path, CONFIG, lora)
    monkeypatch.setattr(safetensors_file.os, "fsync", lambda file: (_ for _ in ()).throw(OSError("No space left")))
    with pytest.raises(OSError, match="No space left"):
        peft.save(tmp_path, CONFIG, jax.tree.map(lambda x: 2 * x, lora))
    equal(peft.load(tmp_path, CONFIG)[1], lora)


def test_a_tensor_that_is_not_what_was_announced_is_named(tmp_path):
    structs = {"x": jax.ShapeDtypeStruct((2,), "float32")}
    with pytest.raises(ValueError, match=r"x is float32\(3,\), not float32\(2,\)"):
        safetensors_file.write(tmp_path / "file", structs, [np.zeros(3, "float32")], together=False)
    with pytest.raises(ValueError, match="longer than argument"):
        safetensors_file.write(tmp_path / "file", structs, [np.zeros(2, "float32")] * 2, together=False)


PROCESS = """
import json, sys
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
from nlrl_jax.lm.sharding import make_mesh
from nlrl_jax.weights import huggingface, peft
from nlrl_jax.weights.safetensors_file import SafetensorsFile

folder, adapter, out = sys.argv[3:]
read, total = SafetensorsFile.read, []

def counted(self, name, index):
    part = read(self, name, index)
    total.append(part.nbytes)
    return part

SafetensorsFile.read = counted
mesh = make_mesh(fsdp=2, tensor=2)
config, params = huggingface.load(folder, mesh=mesh)
print(json.dumps([sum(total), jax.process_count(), jax.local_device_count()]))
config, lora = peft.load(adapter, config, mesh)
huggingface.save(out + "/base", config, params, max_shard_bytes=20_000)
huggingface.save(out + "/merged", config, params, lora=lora)
peft.save(out + "/adapter", config, lora)
huggingface.load(out + "/merged", mesh=mesh)  # nobody returns from a save before the files are there
"""


@pytest.mark.slow
def test_two_processes_load_halves_and_save_the_whole(folder, params, lora, tmp_path):
    peft.save(tmp_path / "lora", CONFIG, lora)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    out = tmp_path / "out"
    env = {**huggingface.os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, address, str(i), str(folder), str(tmp_path / "lora"), str(out)],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i in range(2)
    ]  # fmt: skip
    texts = [one.communicate(timeout=300) for one in running]
    assert not any(one.returncode for one in running), texts
    whole = 4 * CONFIG.num_params
    for text, _ in texts:
        read, processes, devices = json.loads(text.splitlines()[0])
        assert (processes, devices) == (2, 2)
        assert whole / 2 <= read < whole * 0.52  # half of the kernels; norms and the like lie on all devices
    for file in folder.iterdir():
        assert (out / "base" / file.name).read_bytes() == file.read_bytes()
    equal(peft.load(out / "adapter", CONFIG)[1], lora)
    huggingface.save(tmp_path / "merged", CONFIG, params, lora=lora)
    one, other = (load_file(file / "merged" / "model.safetensors") for file in (tmp_path, out))
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(other[name], one[name], atol=1e-6, rtol=0)
