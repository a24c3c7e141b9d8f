"""Replies by demonstration: their tokens, their form, and that a model learns them."""

import re

import jax
import numpy as np
import pytest

import envs
from envs.walkers import WALKS, demonstrate, reply_template
from launch.warm_start import readable
from nlrl_jax.algorithms.demonstrations import compile_reply
from nlrl_jax.run.metrics import read_rows
from nlrl_jax.text.parser import ReplyFormat, reference_parse
from nlrl_jax.text.prompts import TAGS
from nlrl_jax.weights.load import load_model, load_tokenizer
from tests.launch.scripts import run
from tests.tokenizers_from_wheels import small_tokenizer


@pytest.mark.parametrize("prompt", ["paper", "compact"])
@pytest.mark.parametrize("name", WALKS)
def test_device_replies_equal_host_replies_and_are_well_formed(name, prompt):
    game, tokenizer = envs.make(name, prompt=prompt), small_tokenizer()
    fields, actions = jax.jit(lambda key: demonstrate(game, key, 40, 0.5, False))(jax.random.key(0))
    tokens, lengths = jax.jit(jax.vmap(compile_reply(reply_template(game, prompt), tokenizer)))(fields, actions)
    template = reply_template(game, prompt)
    form = ReplyFormat(tags=TAGS[prompt], actions=game.actions, max_actions=3)
    for i in range(40):
        shown = [int(a) for a in actions[i] if a >= 0]
        text = template.render(
            {**{k: v[i] for k, v in fields.items()}, "shown": np.maximum(actions[i], 0), "num_shown": len(shown)}
        )
        assert [int(t) for t in tokens[i, : lengths[i]]] == [*tokenizer.encode(text), tokenizer.eos_ids[0]]
        parsed = reference_parse(text.encode(), int(lengths[i]), form)
        assert [a for a in parsed.actions if a >= 0] == shown and parsed.format_penalty == 0, text


def test_learns_the_format_and_leaves_a_model(tmp_path, capsys):
    args = (
        "--model=nano", "--prompt=paper", "--batch=4", "--learning_rate=0.005", "--checkpoint_every=4", "--lora_rank=4",
        "--max_tokens=24",
    )  # fmt: skip
    run("warm_start", f"--run_dir={tmp_path}", *args, "--iterations=8")
    losses = [row["loss"] for row in read_rows(tmp_path)]
    assert len(losses) == 8 and np.mean(losses[-3:]) < 0.7 * np.mean(losses[:3])
    loaded = load_model(str(tmp_path / "model"))
    assert loaded.tokenizer.eos_ids == load_tokenizer("nano").eos_ids
    base = load_model("nano")
    moved = [np.abs(a - b).max() for a, b in zip(jax.tree.leaves(loaded.params), jax.tree.leaves(base.params))]
    assert max(moved) > 1e-3 and loaded.config.num_params == base.config.num_params
    said = capsys.readouterr().out
    assert str(tmp_path / "model") in said
    assert re.search(r"readable replies after the warm start: \d+ of 16 \(greedy, first turns\)", said)


def test_replies_that_cannot_be_read_are_shown():
    line = "readable replies after the warm start: 2 of 3 (greedy, first turns)"
    assert readable([("<action>Up</action>", True), ("Up", False), ("<action>Up</action>", True)]) == line
    warned = readable([("to go up I", False), ("?", False)])
    assert "0 of 2" in warned and "warning: most replies cannot be read, such as 'to go up I', so" in warned
