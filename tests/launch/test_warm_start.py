"""Replies by demonstration: their tokens, their form, and that a model learns them."""

import json
import re

import jax
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.algorithms.demonstrations import compile_reply
from nlrl_jax.envs.walkers import WALKS, demonstrate, reply_template
from nlrl_jax.run.metrics import read_rows
from nlrl_jax.run.ms_grpo.walked import walk
from nlrl_jax.run.warm_start import readable
from nlrl_jax.text.parser import ReplyFormat, reference_parse
from nlrl_jax.text.prompts import TAGS
from nlrl_jax.weights.load import load_model, load_tokenizer
from tests.launch.scripts import refusal, run
from tests.small_sentencepiece import small as small_sentencepiece
from tests.tokenizers_from_wheels import small_tokenizer


@pytest.mark.parametrize(
    "name, prompt",
    [
        pytest.param(name, prompt, marks=[pytest.mark.slow] * ((name, prompt) == ("babyai", "paper")))
        for name in WALKS
        for prompt in ("paper", "compact")
    ],
)
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


@pytest.mark.parametrize("form", ["first", "gemma"])
def test_a_reply_has_no_space_before_it(form):
    game, tokenizer = envs.make("frozen_lake", prompt="compact"), small_sentencepiece(form)
    fields, actions = demonstrate(game, jax.random.key(0), 1, 0.5, False)
    assemble = compile_reply(reply_template(game, "compact"), tokenizer)
    tokens, length = assemble({name: values[0] for name, values in fields.items()}, actions[0])
    reply = tokenizer.decode(tokens[:length].tolist())
    assert tokens[:length].tolist() == [*tokenizer.encode(reply, continues=True), tokenizer.end_id]
    assert reply.startswith("<action>")


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


HOST = """
from nlrl_jax.types import HostGame, Outcome, Start
WORDS = ("turn left", "turn right", "go forward")
def reset(tasks): return [Start(seed % 3, f"go to {seed}", f"you see {WORDS[seed % 3]}") for _, seed in tasks]
def step(states, actions): return [Outcome(x, f"you see {WORDS[x]}", float(a == WORDS[x]), False, a == WORDS[x],
                                           a in WORDS) for x, a in zip(states, actions)]
host_game = HostGame("signs", "Do.", WORDS, 4, ("",), reset, step, expert=lambda x: WORDS[x], reversible=True)
silent = HostGame("silent", "Do.", (), 4, ("",), reset, step)
"""


def test_a_game_of_the_host_is_shown_in_transcripts(tmp_path, capsys, monkeypatch):
    (tmp_path / "signs.py").write_text(HOST)
    monkeypatch.syspath_prepend(tmp_path)
    game, folder = ("--game=signs:host_game", "--model=nano_babyai"), tmp_path / "run"
    args = (*game, "--batch=8", "--learning_rate=0.01", "--max_tokens=8", "--lora_rank=4", "--checkpoint_every=10")
    run("warm_start", f"--run_dir={folder}", *args, "--iterations=40", "--skilled_share=1")
    losses = [row["loss"] for row in read_rows(folder)]
    assert len(losses) == 40 and np.mean(losses[-3:]) < 0.5 * np.mean(losses[:3])
    assert "readable replies after the warm start: 16 of 16" in capsys.readouterr().out
    run("evaluate", f"--model={folder / 'model'}", "--game=signs:host_game", "--episodes=6", "--max_tokens=8", "--json")
    played = json.loads(capsys.readouterr().out)
    assert played["success"] == 1 and played["env_return"] == 4 and not played["invalid_actions"]
    line = refusal("warm_start", f"--run_dir={tmp_path / 'no'}", "--model=nano_babyai", "--game=signs:silent")
    assert "silent has neither a list of actions nor `commands`, so that none can be drawn by chance" in line
    line = refusal("warm_start", f"--run_dir={tmp_path / 'no'}", *game, "--habit")
    assert "--habit does nothing for signs:host_game" in line and not (tmp_path / "no").exists()


def test_walkers_are_the_expert_or_chance(tmp_path, monkeypatch):
    names = {}
    exec(HOST, names)
    half = walk(names["host_game"], 20, 0.5, 3)
    right = [all(step.action in step.observation for step in one.steps) for one in half]
    assert all(right[:10]) and sum(right[10:]) < 3 and all(len(one.steps) == 4 for one in half)
    assert walk(names["host_game"], 20, 0.5, 3) == half
    with pytest.raises(ValueError, match="--skilled_share is 0.5, but silent has no expert"):
        walk(names["silent"], 4, 0.5, 0)


def test_replies_that_cannot_be_read_are_shown():
    line = "readable replies after the warm start: 2 of 3 (greedy, first turns)"
    assert readable([("<action>Up</action>", True), ("Up", False), ("<action>Up</action>", True)]) == line
    warned = readable([("to go up I", False), ("?", False)])
    assert "0 of 2" in warned and "warning: most replies cannot be read, such as 'to go up I', so" in warned
