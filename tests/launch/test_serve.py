"""`nlrl-jax serve`: its process from the first line to SIGTERM, and what runs have trained."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import httpx
import jax
import numpy as np
import openai
import pytest

from nlrl_jax.backends.local import LocalModel
from nlrl_jax.lm.conversation import ConversationForm
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.run.players import load_trained
from nlrl_jax.run.serving.models import LINES, ServedConfig, load_served
from nlrl_jax.run.serving.requests import read_chat
from nlrl_jax.types import Chat, Sampling
from tests.launch.scripts import refusal, run, tiny_model
from tests.run.serving.running import running, serving

ROOT = pathlib.Path(__file__).parents[2]
SMALL = (
    "--iterations=1", "--group_size=4", "--num_groups=2", "--temperature=1", "--top_k=0", "--max_tokens=12",
    "--max_turns=2", "--eval_turns=1", "--eval_episodes=2", "--learning_rate=0.5", "--lora_rank=2", "--cache_mb=10",
)  # fmt: skip
GAME = """
from nlrl_jax.types import HostGame, Outcome, Start
def reset(tasks):
    return [Start(0, "letters", f"task {seed % 5}") for _, seed in tasks]
def step(states, actions):
    return [Outcome(t + 1, f"seen {t}", float(text.count("e"))) for t, text in zip(states, actions)]
host_game = HostGame("writing", "Write.", (), 6, ("",), reset, step, score="letters", reply_form="Write letters.")
"""


@pytest.fixture
def direct(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_a_stream_under_way_at_sigterm_ends_and_so_does_the_process(direct):
    command = [sys.executable, "-m", "nlrl_jax.launch.serve", "--port=0", "--rows=8", "--served_name=small"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child:
        line = child.stdout.readline()
        url = re.match(r"serving small at (http://127\.0\.0\.1:\d+/v1); Ctrl-C ends it", line)[1]
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
        assert [entry.id for entry in client.models.list()] == ["small"]  # answered once the model is ready
        asked = {"model": "small", "prompt": "F _ G\n", "max_tokens": 900, "temperature": 1.5, "seed": 1, "n": 4}
        stream = client.completions.create(**asked, stream=True)
        parts = [next(iter(stream))]
        child.send_signal(signal.SIGTERM)
        parts += list(stream)
        assert {part.choices[0].index for part in parts if part.choices[0].finish_reason} == {0, 1, 2, 3}
        said, errors = child.communicate(timeout=60)
    assert child.returncode == 0 and said == "the server has ended\n" and "Traceback" not in errors
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/models")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    (folder / "writing.py").write_text(GAME)
    tiny_model(folder / "tiny", 256)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        for form in ("chat", "lines"):
            options = ("--sampling_temperature=0", f"--turns={form}", *(("--think=on",) if form == "chat" else ()))
            game = ("--game=writing:host_game", f"--model={folder / 'tiny'}", f"--run_dir={folder / form}")
            run("train_ms_grpo", *game, *SMALL, *options)
        yield folder


def trained(run_dir):
    """The local model of a run, and the same without what it learned."""
    loaded, lora, _, _ = load_trained(run_dir)
    network, params = Transformer(loaded.config), {"params": loaded.params}
    return LocalModel(network, {**params, "lora": lora}, loaded.tokenizer), LocalModel(
        network, params, loaded.tokenizer
    )


MESSAGES = [{"role": "system", "content": "Write."}, {"role": "user", "content": "task 1"}]


def test_an_adapter_of_a_run_in_chat_is_asked_and_answers_as_in_the_run(folder, direct):
    served = load_served(ServedConfig(adapter=str(folder / "chat")))
    form = ConversationForm.of(served.model.tokenizer, thinks=True)
    prompt = served.prompts.of_chat(read_chat({"messages": MESSAGES}))
    assert prompt.tokens == form.opening("Write.", "task 1") and prompt.thought_end == "</think>"
    assert served.name == "chat" and "iteration 1" in served.notes[0] and "<think>" in " ".join(served.notes)
    # The next turn, too, has the tokens of the run's conversation.
    reply = tuple(served.model.tokenizer.encode("I think.\n</think>\n\nabc<|im_end|>"))
    later = [*MESSAGES, {"role": "assistant", "content": "<think>\nI think.\n</think>\n\nabc"}, *MESSAGES[1:]]
    grown = prompt.tokens + reply + form.between("task 1", ended=True)
    assert served.prompts.of_chat(read_chat({"messages": later})).tokens == grown
    model, base = trained(folder / "chat")
    (wanted,), (untrained,) = (one.write([prompt.tokens], Sampling(30, 0.0), "r") for one in (model, base))
    server = serving(served.model, served.name)
    server.prompts = served.prompts
    with running(server) as url:
        asked = {"model": "chat", "messages": MESSAGES, "temperature": 0, "max_tokens": 30}
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
        (choice,) = client.chat.completions.create(**asked, logprobs=True).choices
    log_probs = [token.logprob for token in choice.logprobs.content]
    np.testing.assert_allclose(log_probs, wanted.log_probs[: len(log_probs)], atol=1e-5)
    assert not np.allclose(wanted.log_probs[:5], untrained.log_probs[:5], atol=1e-3)


def test_an_adapter_of_a_run_in_lines_continues_transcripts(folder, direct):
    served = load_served(ServedConfig(adapter=str(folder / "lines"), served_name="liner"))
    assert served.notes[1:] == (LINES,) and served.name == "liner"
    model, _ = trained(folder / "lines")
    chat = Chat.of("Write.", continued="Goal: letters\nObservation: task 1\nAction:")
    (wanted,) = model.complete([chat], Sampling(12, 0.0), "policy", stop=("\n",))
    with running(serving(served.model, served.name)) as url:
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
        asked = {"model": "liner", "messages": list(chat.messages), "temperature": 0, "max_tokens": 12, "stop": ["\n"]}
        extra = {"continue_final_message": True, "add_generation_prompt": False}
        (choice,) = client.chat.completions.create(**asked, extra_body=extra).choices
        text = model.tokenizer.render_chat(chat.messages)
        asked = {name: asked[name] for name in ("model", "temperature", "max_tokens", "stop")}
        assert client.completions.create(**asked, prompt=text).choices[0].text == choice.message.content == wanted.text


def test_a_peft_adapter_is_what_its_run_is(folder):
    tiny = str(folder / "tiny")
    served = load_served(ServedConfig(model=tiny, adapter=str(folder / "chat" / "adapter")))
    of_run = load_served(ServedConfig(adapter=str(folder / "chat")))
    assert served.name == "adapter"
    for left, right in zip(*(jax.tree.leaves(one.model.variables["lora"]) for one in (served, of_run)), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-6)


@pytest.mark.parametrize(
    "args, said",
    [
        (["--host=0.0.0.0"], "--host 0.0.0.0 lets other machines ask the model: give --api_key_env NAME"),
        (["--api_key_env=NOT_THERE"], "that environment variable is not set, or empty"),
        (["--port=70000"], "--port is 70000"),
        (["--model=nowhere"], "no model at 'nowhere'"),
        (["--model=nano", "--part=policy"], "--part does nothing without --adapter RUN_DIR"),
        (["--model=nano", "--adapter=nowhere"], "holds no adapter_config.json"),
    ],
)
def test_bad_input(args, said):
    assert said in refusal("serve", "--port=0", *args)


def test_a_run_has_its_own_model(folder):
    assert "--model does nothing with the run" in refusal(
        "serve", "--port=0", f"--adapter={folder / 'chat'}", "--model=nano"
    )


def test_without_the_extra_the_server_says_what_to_install(monkeypatch):
    for module in ("starlette.applications", "starlette", "nlrl_jax.run.serving.server"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert "the package starlette is needed and not installed: pip install" in refusal("serve", "--port=0")
