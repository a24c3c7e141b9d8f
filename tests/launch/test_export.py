"""Exported models: the numbers of model and adapter in one folder, which transformers reads too."""

import json
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.lm.transformer import Transformer, init_lora
from nlrl_jax.run.directory import close_run, open_run
from nlrl_jax.run.players import load_trained
from nlrl_jax.weights import peft
from nlrl_jax.weights.checkpoint import Checkpoints
from nlrl_jax.weights.load import load_model
from tests.launch.scripts import refusal, run

CHAT = [{"role": "user", "content": "P _ G\n"}]


def random_like(tree, seed):
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    noise = [leaf + 0.1 * jax.random.normal(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves)]
    return jax.tree.unflatten(structure, noise)


def write_run(run_dir, config, learned, folder="."):
    """What a training script leaves: a config, and a checkpoint of iteration 3."""
    open_run(run_dir, {"model": "nano", "dtype": "", **config})
    close_run(run_dir)
    checkpoints = Checkpoints(run_dir / folder / "checkpoints")
    checkpoints.save(3, {**learned, "iteration": jnp.int32(3)})
    checkpoints.close()
    return run_dir


def logits(config, variables, tokenizer):
    tokens = jnp.array([tokenizer.encode(tokenizer.render_chat(CHAT))])
    model = Transformer(config)
    hidden, _ = model.apply(variables, tokens, jnp.arange(tokens.shape[1])[None])
    return np.asarray(model.apply(variables, hidden, method="unembed"))


@pytest.fixture(scope="module")
def base():
    return load_model("nano", lora=LoraConfig(2, 6.0))


@pytest.fixture(scope="module")
def lora(base):
    return random_like(nn.meta.unbox(init_lora(Transformer(base.config), jax.random.key(0))), 1)


@pytest.mark.parametrize("source", ["run", "adapter"])
def test_an_adapter_is_merged(base, lora, source, tmp_path, capsys):
    if source == "run":
        config = {"lora_rank": 2, "lora_alpha": 6.0, "date": "2026-01-31"}
        run_dir = write_run(tmp_path / "run", config, {"lora": lora})
        assert load_trained(run_dir).loaded.tokenizer.options.date == "2026-01-31"
        run("export", f"--run_dir={run_dir}", f"--out={tmp_path / 'out'}")
        assert "run at iteration 3: exported to" in capsys.readouterr().out
    else:
        peft.save(tmp_path / "adapter", base.config, lora)
        run("export", "--model=nano", f"--adapter={tmp_path / 'adapter'}", f"--out={tmp_path / 'out'}")
    exported = load_model(str(tmp_path / "out"))
    want = logits(base.config, {"params": base.params, "lora": lora}, base.tokenizer)
    got = logits(exported.config, {"params": exported.params}, exported.tokenizer)
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=0)
    assert np.abs(want - logits(base.config, {"params": base.params}, base.tokenizer)).max() > 0.1
    assert exported.tokenizer.eos_ids == base.tokenizer.eos_ids


def test_a_part_of_a_run_that_trains_weights(base, tmp_path):
    policy = random_like(base.params, 2)
    write_run(tmp_path / "run", {"train": "params"}, {"policy": policy, "value": base.params}, "random/method")
    folder = f"--run_dir={tmp_path / 'run' / 'random' / 'method'}"
    run("export", folder, "--part=policy", f"--out={tmp_path / 'out'}")
    exported = load_model(str(tmp_path / "out"))
    jax.tree.map(np.testing.assert_array_equal, exported.params, policy)
    line = refusal("export", folder, f"--out={tmp_path / 'other'}")
    assert "no part 'params'; its parts are iteration, policy, value" in line


READ = """
import json, sys
from transformers import AutoConfig, AutoTokenizer, GenerationConfig
folder, chat = sys.argv[1], json.loads(sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(folder)
ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
config, generation = AutoConfig.from_pretrained(folder), GenerationConfig.from_pretrained(folder)
named = [[getattr(one, f"{role}_token_id") for role in ("bos", "eos", "pad")] for one in (config, generation)]
print(json.dumps([config.hidden_size, ids, named, "torch" in sys.modules]))
"""


def test_transformers_reads_it_without_torch(base, tmp_path):
    run("export", "--model=nano", f"--out={tmp_path / 'out'}")
    command = [sys.executable, "-c", READ, str(tmp_path / "out"), json.dumps(CHAT)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    tokenizer = base.tokenizer
    ids = tokenizer.encode(tokenizer.render_chat(CHAT))
    named = [[None, 2, 0], [None, [2], 0]]  # bos 1 and eos 2 are what transformers takes where nothing stands
    assert json.loads(out) == [base.config.hidden_size, ids, named, False]
