"""MS-GRPO in chats, through the scripts, with a tiny random model: metrics, evaluations, resuming, and old runs."""

import json

import jax
import numpy as np
import pytest

from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.run import results
from nlrl_jax.run.host_games.prompts import FORM
from nlrl_jax.run.metrics import read_rows
from nlrl_jax.run.ms_grpo.config import TurnsConfig
from nlrl_jax.run.ms_grpo.token_players import turn_actions_of
from nlrl_jax.run.ms_grpo.transcripts import beginnings_of
from nlrl_jax.weights import peft
from tests.launch.scripts import refusal, run, tiny_model

SCRIPT = "train_ms_grpo"
CONFIG = ModelConfig(640, 16, 24, 1, 2, 1, 8, 256)
SMALL = (
    "--game=rooms:host_game", "--iterations=2", "--group_size=4", "--num_groups=2",
    "--sampling_temperature=0", "--temperature=1", "--top_k=0", "--max_tokens=12", "--max_turns=3", "--eval_turns=2",
    "--eval_episodes=3", "--learning_rate=0.02", "--lora_rank=2", "--checkpoint_every=1", "--cache_mb=10",
)  # fmt: skip
GAME = '''
"""Each letter e of a reply is worth 1; a reply with the word Quit has no action that this reads."""
import dataclasses
from nlrl_jax.types import HostGame, Outcome, Start
def reset(tasks):
    return [Start(0, "letters", f"task {seed % 5}") for _, seed in tasks]
def step(states, actions):
    pay = [float(text.count("e")) for text in actions]
    return [Outcome(t + 1, f"seen {t}", *end) for t, *end in zip(states, pay)]
host_game = HostGame("rooms", "Write.", (), 6, ("",), reset, step, score="letters", reply_form="Write letters.",
                     read_action=lambda text: None if "Quit" in text else text)
def long_at_times(tasks):
    return [start._replace(observation="e " * 400 * (start.observation == "task 2") + start.observation)
            for start in reset(tasks)]
long = dataclasses.replace(host_game, name="long", reset=long_at_times)
word = dataclasses.replace(host_game, name="word", actions=("e", "ee"), reply_form="", read_action=None)
mute = dataclasses.replace(host_game, name="mute", read_action=lambda text: None)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    (folder / "rooms.py").write_text(GAME)
    assert tiny_model(folder / "tiny", 256)[1] == CONFIG
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


def train(folder, run_dir, *args):
    run(SCRIPT, f"--run_dir={run_dir}", f"--model={folder / 'tiny'}", *SMALL, *args)


@pytest.fixture(scope="module")
def whole(folder):
    train(folder, folder / "whole", "--episode_tokens=60", "--think", "on", "--think_tokens=6")
    return folder / "whole"


def test_two_iterations_in_chat(whole):
    rows = read_rows(whole)
    shares = ("actions_read", "closed_thoughts", "cut_replies")
    assert len(rows) == 2 and all(np.isfinite(list(row.values())).all() for row in rows)
    assert all(0 <= row[name] <= 1 for row in rows for name in shares) and rows[0]["actions_read"] > 0
    assert rows[0]["closed_thoughts"] > 0 and rows[0]["sampler_gap"] < 1e-4 and rows[0]["grad_norm"] > 0
    assert all(0 < row["thought_tokens"] <= 6 and 0 < row["action_tokens"] <= 12 for row in rows)
    stored = json.loads((whole / "config.json").read_text())
    assert (stored["turns"], stored["think"], stored["context"]) == ("chat", "on", "transcript")
    (first, *_) = results.read(whole)["transcripts"]["before"]
    assert "Write.\nWrite letters." in first["turns"][0]["prompt"] and first["turns"][1]["prompt"] == "seen 0"
    assert first["turns"][0]["prompt"].endswith("<|im_start|>assistant\n<think>\n")
    assert "actions_read" in results.read(whole)["after"]
    page = (whole / "report.html").read_text()
    assert "actions read" in page


def test_environments_in_workers_change_no_bit(whole, folder):
    args = ("--episode_tokens=60", "--think=on", "--think_tokens=6", "--iterations=1", "--env_workers=2")
    train(folder, folder / "workers", *args)
    first, again = (read_rows(folder / name)[0] for name in ("whole", "workers"))
    assert [again[name] for name in ("loss", "return", "grad_norm")] == [
        first[name] for name in ("loss", "return", "grad_norm")
    ]


def test_a_resumed_run_has_the_same_bits(whole, folder):
    args = ("--episode_tokens=60", "--think=on", "--think_tokens=6")
    train(folder, folder / "resumed", *args, "--iterations=1")
    train(folder, folder / "resumed", *args, "--iterations=2", "--resume")
    rows = [[row["loss"] for row in read_rows(folder / name)] for name in ("whole", "resumed")]
    assert rows[0] == rows[1]
    (_, lora), (_, again) = (peft.load(folder / name / "adapter", CONFIG) for name in ("whole", "resumed"))
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(lora), jax.tree.leaves(again), strict=True))


def test_evaluate_plays_in_the_form_of_the_run(whole, folder, capsys):
    run("evaluate", f"--run_dir={whole}", "--json")
    assert json.loads(capsys.readouterr().out) == {"game": "rooms:host_game", **results.read(whole)["after"]}
    form = ("--turns=chat", "--think", "--think_tokens=6", "--episode_tokens=60", f"--adapter={whole / 'adapter'}")
    limits = ("--max_tokens=12", "--episodes=3", "--max_turns=2")
    run("evaluate", f"--model={folder / 'tiny'}", "--game=rooms:host_game", *limits, *form, "--json")
    said = capsys.readouterr()
    assert json.loads(said.out) == {"game": "rooms:host_game", **results.read(whole)["after"]}
    assert "chat template: " in said.err


def test_a_run_from_before_there_were_chats_goes_on_in_lines(folder, capsys):
    train(folder, folder / "old", "--turns=lines", "--nothink", "--prompt=compact", "--iterations=1")
    path = folder / "old" / "config.json"
    stored = json.loads(path.read_text())
    assert (stored.pop("turns"), stored.pop("think")) == ("lines", "off")
    del stored["think_tokens"], stored["episode_tokens"], stored["turn_actions"]
    path.write_text(json.dumps(stored | {"think": False}))
    train(folder, folder / "old", "--prompt=compact", "--iterations=2", "--resume")
    assert [row["iteration"] for row in read_rows(folder / "old")] == [0, 1]
    assert json.loads(path.read_text())["turns"] == "lines"
    assert "resuming with a changed iterations" in capsys.readouterr().out


def test_fines_may_begin_when_a_run_is_resumed(folder, capsys):
    """The episodes are those of a run without fines, and pay less."""
    free, later, game = folder / "free", folder / "later", "--game=rooms:word"
    train(folder, free, game, "--iterations=2", "--invalid_action_reward=0")
    train(folder, later, game, "--iterations=1", "--invalid_action_reward=0")
    train(folder, later, game, "--iterations=2", "--invalid_action_reward=-0.25", "--resume")
    assert "resuming with a changed invalid_action_reward: 0.0 -> -0.25" in capsys.readouterr().out
    (first, second), (unchanged, fined) = read_rows(free), read_rows(later)
    assert first["return"] == unchanged["return"] and second["invalid_actions"] == fined["invalid_actions"] > 0
    assert fined["return"] <= second["return"] - 0.25 * fined["turns"] * fined["invalid_actions"] + 1e-6


@pytest.mark.parametrize("turns", ["lines", "chat"])
def test_a_model_plays_in_the_form_that_it_has_learned(turns, folder, tmp_path, capsys):
    """As the run itself, with its adapter, and as an exported folder."""
    train(folder, tmp_path / "run", f"--turns={turns}", "--iterations=1", "--prompt=compact")
    adapter, form = tmp_path / "run" / "adapter", {"prompt": "compact", "examples": 1, "turns": turns}
    run("export", f"--run_dir={tmp_path / 'run'}", f"--out={tmp_path / 'merged'}")
    run("export", f"--model={folder / 'tiny'}", f"--adapter={adapter}", f"--out={tmp_path / 'again'}")
    said = "which has learned in lines (" if turns == "lines" else "which has learned in messages of a chat ("
    assert capsys.readouterr().out.count(said) == 2
    for written in (adapter, tmp_path / "merged", tmp_path / "again"):
        assert json.loads((written / FORM).read_text()) == form
    after = results.read(tmp_path / "run")["after"]
    for model in ((f"--model={folder / 'tiny'}", f"--adapter={adapter}"), (f"--model={tmp_path / 'merged'}",)):
        limits = ("--max_tokens=12", "--episodes=3", "--max_turns=2", "--json")
        run("evaluate", *model, "--game=rooms:host_game", *limits)
        played = capsys.readouterr()
        assert ("chat template: " in played.err) == (turns == "chat")
        assert json.loads(played.out) == {"game": "rooms:host_game", **after}


def test_a_model_that_has_learned_several_actions_a_reply_plays_so(folder, tmp_path, capsys):
    train(folder, tmp_path / "run", "--game=rooms:word", "--turn_actions=2", "--iterations=1")
    adapter, after = tmp_path / "run" / "adapter", results.read(tmp_path / "run")["after"]
    assert json.loads((adapter / FORM).read_text())["turn_actions"] == 2
    for chosen, number in ((TurnsConfig(), 2), (TurnsConfig(turn_actions=1), 1), (TurnsConfig(turns="lines"), 1)):
        assert turn_actions_of(chosen, str(adapter)) == number
    assert "holds 1 to 2 actions" in results.read(tmp_path / "run")["transcripts"]["after"][0]["turns"][0]["prompt"]
    limits = ("--max_tokens=12", "--episodes=3", "--max_turns=2", "--json")
    run("evaluate", f"--run_dir={tmp_path / 'run'}", "--json")
    run("evaluate", f"--model={folder / 'tiny'}", f"--adapter={adapter}", "--game=rooms:word", *limits)
    played = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert played == [{"game": "rooms:word", **after}] * 2


def test_a_run_in_which_no_action_is_read_says_so_at_once(folder, capsys):
    train(folder, folder / "mute", "--game=rooms:mute", "--iterations=1")
    said = capsys.readouterr().out
    assert "warning: in this iteration no reply held an action that could be read" in said
    assert read_rows(folder / "mute")[0]["actions_read"] == 0 and "actions_read 0" in said


def test_bad_input(folder):
    def wrong(*args):
        line = refusal(SCRIPT, f"--run_dir={folder / 'no'}", *SMALL, *args)
        assert not (folder / "no").exists()
        return line

    tiny = f"--model={folder / 'tiny'}"
    assert "--turns is 'talk'; choose one of auto, chat, lines" in wrong(tiny, "--turns=talk")
    assert "--think is 'loud'; choose one of auto, off, on" in wrong(tiny, "--think=loud")
    assert "--examples does nothing with --turns chat" in wrong(tiny, "--turns=chat", "--examples=1")
    assert "--think_tokens does nothing with --turns lines" in wrong(tiny, "--examples=1", "--think_tokens=9")
    assert "--think_tokens does nothing with --turns lines" in wrong("--model=nano_babyai", "--think_tokens=9")
    assert "--think_tokens does nothing with --turns lines" in wrong(tiny, "--turns=lines", "--think_tokens=9")
    assert "--turn_actions does nothing with --turns lines" in wrong(tiny, "--turns=lines", "--turn_actions=2")
    assert "rooms takes one action a turn" in wrong(tiny, "--turn_actions=2")
    assert "Lower --max_tokens to" in wrong(tiny, "--max_tokens=250")
    assert "--episode_tokens is 5, but a turn may write 12" in wrong(tiny, "--episode_tokens=5")


@pytest.mark.parametrize(
    "prompts, rules, expected",
    [
        ([range(300)] * 8, 100, [299, 100, 0]),  # one start: the whole prompt but its last token
        ([[*range(200), 1, 2], [*range(200), 3]], 100, [200, 100, 0]),
        ([[*range(150), 1, 2], [*range(150), 3]], 100, [100, 0]),  # too little more than the rules
        ([[*range(20), 1], [*range(20), 3]], 20, [0]),
    ],
)
def test_what_all_prompts_begin_with_is_read_once(prompts, rules, expected):
    beginnings = beginnings_of([tuple(prompt) for prompt in prompts], tuple(range(rules)))
    assert [len(tokens) for tokens in beginnings] == expected
    assert all(tokens == tuple(range(len(tokens))) for tokens in beginnings)


def test_a_task_that_does_not_fit_the_context_costs_its_episodes_and_not_the_run(folder):
    train(folder, folder / "long", "--game=rooms:long", "--iterations=1")
    (row,) = read_rows(folder / "long")
    assert 0 <= row["broke_off"] < 1
