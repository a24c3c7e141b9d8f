"""Prompts as text: one beginning-of-sequence token reaches the model, from us or from the server."""

import dataclasses
import itertools

import pytest

from nlrl_jax.backends import endpoint_checks
from nlrl_jax.run import models
from nlrl_jax.types import Chat
from tests.backends import server as s
from tests.backends.endpoints import GREEDY, of_a_run
from tests.backends.server import Server
from tests.tokenizers_from_wheels import small_tokenizer
from tests.weights.test_gguf_tokenizer import FIRST, write  # noqa: F401

BOS = "<|endoftext|>"
OPEN = Chat.of("goal", continued="Action:")
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
WITH_BOS = "{{ bos_token }}" + TEMPLATE


class Tokenizing:
    """A server that puts a bos before each text or not, as llama.cpp and vLLM do: also before one that has its own.

    Attributes:
      begins: how many bos tokens the last text began with.
    """

    def __init__(self, adds: bool, counts: bool = True):
        self.adds, self.counts, self.begins = adds, counts, -1

    def __call__(self, request):
        text, self.begins = request.body["prompt"], int(self.adds)
        self.adds = self.adds and request.body.get("add_special_tokens", True)
        while text.startswith(BOS):
            text, self.begins = text.removeprefix(BOS), self.begins + 1
        return self.behave

    def behave(self, handler, request):
        text = {"index": 0, "text": " left", "finish_reason": "length"}
        prompt = self.begins + len(request.body["prompt"].replace(BOS, ""))
        usage = {"usage": {"prompt_tokens": prompt, "completion_tokens": 1}} if self.counts else {}
        s.send(handler, {"choices": [text], **usage})


def asking(path, url, tmp_path, extra=""):
    return of_a_run(url, tmp_path, extra=extra, endpoint_tokenizer=str(path), max_retries=1)


def hugging_face(folder, template, adds):
    single = [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {BOS: {"id": BOS, "ids": [0], "tokens": [BOS]}}
    post = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special} if adds else None
    tokenizer = dataclasses.replace(small_tokenizer(), chat_template=template, bos_token=BOS, post_processor=post)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("template, adds", itertools.product([TEMPLATE, WITH_BOS], [True, False]))
@pytest.mark.parametrize("kind", ["gguf", "hugging face"])
def test_one_bos_reaches_the_model(kind, template, adds, write, tmp_path):  # noqa: F811
    if kind == "gguf":
        path = write([BOS], chat_template=template, add_bos_token=adds, bos_token_id=FIRST)
    else:
        path = hugging_face(tmp_path / "model", template, adds)
    wanted = int(adds or template == WITH_BOS)
    behaviour = Tokenizing(adds)
    with Server(behaviour=behaviour) as server:
        for prompt in (asking(path, server.url, tmp_path), prepared(path, server.url, tmp_path)):
            prompt.complete([OPEN], GREEDY, "r")
            assert behaviour.begins == wanted
            assert server.requests[-1].body["prompt"].endswith("[user]goalAction:")


def prepared(path, url, tmp_path, extra=""):
    return models.prepared(asking(path, url, tmp_path, extra), models.Scores(False, False, ""))


@pytest.mark.parametrize(
    "file_adds, server_adds, counts",
    [(True, False, True), (False, True, True), (True, True, False), (False, False, False)],
)
def test_what_the_server_does_counts_before_what_the_file_says(file_adds, server_adds, counts, tmp_path):
    """A server may have another copy of the tokenizer, or another library's reading of it. One that counts no tokens
    does as the file says."""
    path, behaviour = hugging_face(tmp_path / "model", WITH_BOS, file_adds), Tokenizing(server_adds, counts)
    with Server(behaviour=behaviour) as server:
        ask = prepared(path, server.url, tmp_path)
        ask.complete([OPEN], GREEDY, "r")
    assert behaviour.begins == 1 and ask.abilities.adds_bos is (server_adds if counts else None)


def test_the_user_may_tell_a_server_to_add_none(tmp_path):
    path, behaviour = hugging_face(tmp_path / "model", WITH_BOS, True), Tokenizing(True)
    with Server(behaviour=behaviour) as server:
        asking(path, server.url, tmp_path, "add_special_tokens=false").complete([OPEN], GREEDY, "r")
        prompt = server.requests[-1].body["prompt"]
        assert endpoint_checks.abilities(asking(path, server.url, tmp_path), False).adds_bos is False
    assert prompt.startswith(BOS)
