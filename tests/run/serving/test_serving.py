"""What a server says to the `openai` package: answers equal to the local model's, streams equal to whole answers."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest

from nlrl_jax.backends import engine
from nlrl_jax.types import Chat, Sampling

HI = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Where to?"}]
GREEDY = {"model": "m", "messages": HI, "temperature": 0, "max_tokens": 24}
HOT = {**GREEDY, "temperature": 1.0, "seed": 7}


def said(answer):
    return [choice.message.content for choice in answer.choices]


def test_the_model_is_listed(client):
    (entry,) = client.models.list()
    assert entry.id == "m" and entry.max_model_len == 320 and client.models.retrieve("m").id == "m"


def test_a_greedy_reply_is_the_local_models(client, local):
    answer = client.chat.completions.create(**GREEDY)
    (reply,) = local.complete([Chat(tuple(HI))], Sampling(24, 0.0), "policy")
    (choice,) = answer.choices
    assert choice.message.content == reply.text and choice.finish_reason == "length" and answer.model == "m"
    counts = answer.usage
    assert (counts.prompt_tokens, counts.completion_tokens) == (reply.prompt_tokens, reply.tokens) == (29, 24)
    assert counts.total_tokens == 53


def test_greedy_repeats_to_the_bit(client):
    answers = [client.chat.completions.create(**GREEDY, logprobs=True) for _ in range(3)]
    rows = [[token.logprob for token in answer.choices[0].logprobs.content] for answer in answers]
    assert rows[0] == rows[1] == rows[2] and len(rows[0]) == 24


@pytest.mark.parametrize("cut", [{}, {"top_p": 0.7}, {"extra_body": {"top_k": 5}}])
def test_a_seed_repeats_its_replies_whatever_else_is_in_the_batch(client, cut):
    alone = said(client.chat.completions.create(**HOT, **cut, n=2))
    others = [{**HOT, "seed": 8}, {**HOT, "temperature": 0.2}, {**HOT, "top_p": 0.5}, {**GREEDY, "max_tokens": 60}] * 2
    with ThreadPoolExecutor(9) as pool:
        neighbours = [pool.submit(client.chat.completions.create, **other) for other in others]
        among = said(pool.submit(client.chat.completions.create, **HOT, **cut, n=2).result())
        texts = [said(neighbour.result())[0] for neighbour in neighbours]
    assert among == alone and alone[0] != alone[1]
    assert texts[:4] == texts[4:] and alone[0] not in texts


def test_without_a_seed_replies_differ(client):
    replies = [said(client.chat.completions.create(**{**HOT, "seed": None}))[0] for _ in range(2)]
    assert replies[0] != replies[1]


def test_a_limit_of_one_token_and_the_newer_name_of_the_limit(client):
    limits = {"max_tokens": None, "max_completion_tokens": 1}
    assert client.chat.completions.create(**{**GREEDY, **limits}).usage.completion_tokens == 1


def test_without_a_limit_a_chat_writes_up_to_the_context(client):
    answer = client.chat.completions.create(**{**GREEDY, "max_tokens": None})
    assert answer.usage.total_tokens == 320 and answer.choices[0].finish_reason == "length"


def collected(stream):
    """(texts by index, tokens by index, reasons by index, usages) of a stream."""
    texts, tokens, reasons, usages = {}, {}, {}, []
    for chunk in stream:
        usages += [chunk.usage] if chunk.usage else []
        for choice in chunk.choices:
            new = choice.text if hasattr(choice, "text") else choice.delta.content
            texts[choice.index] = texts.get(choice.index, "") + (new or "")
            tokens[choice.index] = tokens.get(choice.index, []) + (choice.logprobs.content if choice.logprobs else [])
            reasons[choice.index] = choice.finish_reason
    return texts, tokens, reasons, usages


def test_a_stream_is_the_whole_answer_in_parts(client):
    asked = {**HOT, "n": 3, "logprobs": True, "top_logprobs": 2, "max_tokens": 40}
    whole = client.chat.completions.create(**asked)
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    texts, tokens, reasons, (counts,) = collected(stream)
    for choice in whole.choices:
        assert texts[choice.index] == choice.message.content and reasons[choice.index] == choice.finish_reason
        listed = [(token.token, tuple(token.bytes)) for token in tokens[choice.index]]
        assert listed == [(token.token, tuple(token.bytes)) for token in choice.logprobs.content]
    assert counts == whole.usage


def test_a_stream_of_texts(client):
    asked = {"model": "m", "prompt": "Where to?", "max_tokens": 40, "temperature": 0, "n": 2}
    whole = client.completions.create(**asked)
    texts, _, reasons, counts = collected(client.completions.create(**asked, stream=True))
    assert [texts[0], texts[1]] == [choice.text for choice in whole.choices] and not counts
    assert set(reasons.values()) == {"length"}


def test_a_stop_string_ends_a_reply_and_a_stream_alike(client):
    text = said(client.chat.completions.create(**{**GREEDY, "max_tokens": 60}))[0]
    stop = text[30:33]
    answer = client.chat.completions.create(**{**GREEDY, "max_tokens": 60}, stop=[stop, "never"])
    (choice,) = answer.choices
    assert choice.message.content == text[: text.index(stop)] and choice.finish_reason == "stop"
    assert answer.usage.completion_tokens < 60
    stream = client.chat.completions.create(**{**GREEDY, "max_tokens": 60}, stop=stop, stream=True)
    texts, _, reasons, _ = collected(stream)
    assert texts[0] == choice.message.content and reasons[0] == "stop"


def test_the_likeliest_tokens(client):
    (choice,) = client.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=5).choices
    for token in choice.logprobs.content:
        top = token.top_logprobs
        assert len(top) == 5 and (top[0].token, top[0].logprob) == (token.token, token.logprob)  # it is greedy
        assert [entry.logprob for entry in top] == sorted((entry.logprob for entry in top), reverse=True)
        assert bytes(token.bytes).decode("utf-8", "replace") == token.token and token.logprob <= 0
    assert "".join(token.token for token in choice.logprobs.content) == choice.message.content


def test_the_log_probabilities_of_an_echo_are_the_local_ones(client, local):
    tokenizer, texts = local.tokenizer, ["A wall is here.", "Go left, then right."]
    answer = client.completions.create(model="m", prompt=texts, max_tokens=0, echo=True, logprobs=3)
    ids = [tuple(tokenizer.encode(text)) for text in texts]
    expected = engine.score(local.network(), local.kv_session, [(row[:1], row[1:]) for row in ids])
    for choice, text, total, row in zip(answer.choices, texts, expected, ids, strict=True):
        listed = choice.logprobs
        assert choice.text == text and "".join(listed.tokens) == text and listed.token_logprobs[0] is None
        assert [text[at:][: len(token)] for at, token in zip(listed.text_offset, listed.tokens)] == listed.tokens
        np.testing.assert_allclose(sum(listed.token_logprobs[1:]), total, atol=1e-5)
        assert len(listed.tokens) == len(row) and all(len(top) == 3 for top in listed.top_logprobs[1:])
    assert answer.usage.prompt_tokens == sum(map(len, ids)) and answer.usage.completion_tokens == 0


def test_an_echo_goes_on(client):
    asked = {"model": "m", "prompt": "A wall", "max_tokens": 5, "temperature": 0, "logprobs": 1}
    plain, echoed = (client.completions.create(**asked, echo=echo).choices[0] for echo in (False, True))
    assert echoed.text == "A wall" + plain.text
    size = len(plain.logprobs.tokens)
    assert echoed.logprobs.tokens[-size:] == plain.logprobs.tokens
    assert "".join(echoed.logprobs.tokens[:-size]) == "A wall"


def test_prompts_may_be_several_and_token_ids(client, local):
    asked = {"model": "m", "max_tokens": 8, "temperature": 0}
    ids = local.tokenizer.encode("A wall")
    together = client.completions.create(**asked, prompt=["A wall", "A door"], n=2).choices
    alone = [client.completions.create(**asked, prompt=prompt).choices[0].text for prompt in ("A wall", "A door")]
    assert [choice.text for choice in together] == [alone[0], alone[0], alone[1], alone[1]]
    assert client.completions.create(**asked, prompt=ids).choices[0].text == alone[0]
    assert [choice.text for choice in client.completions.create(**asked, prompt=[ids, ids]).choices] == [alone[0]] * 2


def test_equal_prompts_of_a_request_draw_apart(client):
    asked = {"model": "m", "max_tokens": 12, "seed": 1, "temperature": 1.0}
    texts = [choice.text for choice in client.completions.create(**asked, prompt=["A wall"] * 2).choices]
    assert texts[0] != texts[1]


def test_an_open_message_is_continued(client, local):
    chat = [*HI, {"role": "assistant", "content": "I go"}]
    answer = client.chat.completions.create(
        **{**GREEDY, "messages": chat},
        extra_body={"continue_final_message": True, "add_generation_prompt": False},
    )
    (reply,) = local.complete([Chat(tuple(chat))], Sampling(24, 0.0), "policy")
    assert said(answer) == [reply.text] and answer.usage.prompt_tokens == reply.prompt_tokens
    closed = client.chat.completions.create(**{**GREEDY, "messages": chat})  # another message begins
    assert closed.usage.prompt_tokens > answer.usage.prompt_tokens


def test_parts_of_messages_and_developers_are_read_as_texts(client):
    parts = [{"type": "text", "text": "Where "}, {"type": "text", "text": "to?"}]
    chat = [{"role": "developer", "content": "Be short."}, {"role": "user", "content": parts}]
    assert said(client.chat.completions.create(**{**GREEDY, "messages": chat})) == said(
        client.chat.completions.create(**GREEDY)
    )


@pytest.mark.parametrize(
    "wrong, param",
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"seed": 0.5}, "seed"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream": 1}, "stream"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"extra_body": {"chat_template_kwargs": {"messages": []}}}, "chat_template_kwargs"),
        ({"extra_body": {"continue_final_message": True}}, "continue_final_message"),
    ],
)
def test_a_wrong_field_is_named(client, wrong, param):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**{**GREEDY, **wrong})
    assert error.value.param == param and param.split("[")[0] in error.value.message


@pytest.mark.parametrize(
    "prompt, param", [("", "prompt"), ([], "prompt"), ([768], "prompt"), ([-1], "prompt"), (["a"] * 129, "prompt")]
)
def test_a_wrong_prompt_is_refused(client, prompt, param):
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="m", prompt=prompt)
    assert error.value.param == param


def test_fields_that_ask_for_nothing_are_taken(client):
    nothing = {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "user": "u", "tool_choice": "auto"}
    more = {"extra_body": {"min_p": 0.0, "repetition_penalty": 1.0, "top_k": -1}, "response_format": {"type": "text"}}
    assert said(client.chat.completions.create(**GREEDY, **nothing, **more)) == said(
        client.chat.completions.create(**GREEDY)
    )


def test_too_long_a_prompt_names_the_context(client):
    with pytest.raises(openai.BadRequestError, match="maximum context length is 320 tokens.*requested 329") as error:
        client.chat.completions.create(**{**GREEDY, "max_tokens": 300})
    assert error.value.code == "context_length_exceeded"


def test_another_model_is_not_here(client):
    for ask in (
        lambda: client.models.retrieve("x"),
        lambda: client.chat.completions.create(**{**GREEDY, "model": "x"}),
    ):
        with pytest.raises(openai.NotFoundError, match="there is no model 'x' here; the model is 'm'"):
            ask()
