"""launch/generate.py: text or token ids in, JSON out, one line where it refuses."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.generate import generate, left_pad
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.types import Sampling
from nlrl_jax.weights import huggingface
from tests.launch.scripts import refusal, run

CONFIG = ModelConfig(40, 16, 24, 1, 2, 1, 8, 32)
PROMPTS = [[5, 17, 3], [39]]


@pytest.fixture(scope="module")
def params():
    rng = np.random.default_rng(3)
    return jax.tree.map(
        lambda x: x + rng.normal(size=x.shape).astype(np.float32), init_params(Transformer(CONFIG), jax.random.key(0))
    )


@pytest.fixture(scope="module")
def greedy(params):
    """What the library says: greedy, nothing ends."""
    prompts, lengths = jnp.array([[5, 17, 3], [39, 0, 0]]), jnp.array([3, 1])
    sample = jax.jit(generate, static_argnums=(0, 5, 6))
    return sample(
        Transformer(CONFIG), {"params": params}, left_pad(prompts, lengths), lengths, jax.random.key(0),
        Sampling(8, 0.0), (),
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory, params, greedy):
    """A model folder without a tokenizer; the first row's fourth token ends a reply."""
    folder = tmp_path_factory.mktemp("model")
    huggingface.save(folder, CONFIG, params, eos_ids=(int(greedy.tokens[0, 3]),))
    return folder


def test_prompt_ids_need_no_tokenizer_and_json_holds_what_generate_returns(folder, greedy, capsys):
    args = [f"--prompt_ids={','.join(map(str, ids))}" for ids in PROMPTS]
    run("generate", f"--model={folder}", *args, "--max_tokens=8", "--temperature=0", "--json")
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    completions = json.loads(out)["completions"]
    assert len(completions) == 2
    eos = int(greedy.tokens[0, 3])
    for row, completion in enumerate(completions):
        tokens = np.asarray(greedy.tokens[row])
        ends = np.flatnonzero(tokens == eos)
        n = ends[0] + 1 if len(ends) else 8
        assert completion["ids"] == tokens[:n].tolist()
        np.testing.assert_allclose(completion["logprobs"], greedy.log_probs[row, :n], atol=1e-4)
        assert completion["ended"] is bool(len(ends)) and completion["text"] is None
    assert completions[0]["ended"]


def test_samples_and_seed(folder, capsys):
    args = ("generate", f"--model={folder}", "--prompt_ids=5,17", "--max_tokens=6", "--samples=3", "--temperature=2")
    run(*args, "--seed=1")
    first = capsys.readouterr().out
    run(*args, "--seed=1")
    assert capsys.readouterr().out == first
    run(*args, "--seed=2")
    assert capsys.readouterr().out != first
    rows = first.splitlines()  # without a tokenizer and without --json: the ids
    assert len(rows) == 3 and all(isinstance(json.loads(row), list) for row in rows)
    assert len(set(rows)) > 1


@pytest.mark.parametrize(
    "args, message",
    [
        (["--prompt_ids=5,40"], "token id 40 is outside the vocabulary 0..39"),
        (["--prompt_ids=5,x"], "is not a list of numbers"),
        (["--prompt_ids=5", "--prompt=hello"], "give either --prompt TEXT or --prompt_ids"),
        ([], "give either --prompt TEXT or --prompt_ids"),
        (["--prompt=hello"], "no tokenizer.json in"),
        (["--prompt_ids=5", "--max_tokens=32"], "1 prompt tokens and --max_tokens 32 do not fit"),
    ],
)
def test_bad_input_is_one_line(folder, args, message):
    line = refusal("generate", f"--model={folder}", *args)
    assert message in line and "\n" not in line
