"""The in-process model against `generate` and full forward passes, whatever the batching."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.backends import engine, engine_shapes, prefill
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.session import Session
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.generate import generate
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.types import Chat, Reply, Sampling
from nlrl_jax.weights.load import load_model, load_tokenizer
from tests.lm.noise import noisy_params

CONFIG = ModelConfig(512, 16, 24, 2, 4, 2, 8, 192, qk_norm=True)
SYSTEM = "You say what comes to your mind, whatever somebody writes to you."  # over 32 tokens: worth a shared prefix
WARM = Sampling(max_tokens=20, temperature=1.3)
GREEDY = Sampling(max_tokens=20, temperature=0.0)
run = jax.jit(generate, static_argnums=(0, 5, 6))


@pytest.fixture(scope="module")
def model():
    """Random weights, peaked, and a tokenizer with so many end tokens that replies are of all lengths."""
    tokenizer = dataclasses.replace(load_tokenizer("nano"), eos_ids=(2, *range(10, 512, 14)))
    return LocalModel(Transformer(CONFIG), noisy_params(CONFIG, 1.0), tokenizer, rows=4)


def other_weights(model, factor=1.1):
    return jax.tree.map(lambda x: x * factor, model.variables)


@pytest.fixture(scope="module")
def chats():
    """13 chats of different lengths; 0, 4 and 9 are the same."""
    words = [("go up and " * (i * i % 5)) + f"stop {i}" for i in range(13)]
    words[4] = words[9] = words[0]
    return [Chat.of(text, SYSTEM) for text in words]


@pytest.fixture(scope="module")
def replies(model, chats):
    return model.complete(chats, WARM, "policy", seed=3)


def prompt_of(model, chat):
    return model.tokenizer.encode(model.tokenizer.render_chat(chat.messages))


def generated(model, chat, sampling):
    """The reply of `generate` to one chat alone."""
    ids = prompt_of(model, chat)
    prompt = np.zeros((1, 128), np.int32)
    prompt[0, 128 - len(ids) :] = ids
    eos = model.tokenizer.eos_ids
    out = run(model.model, model.variables, prompt, np.array([len(ids)]), jax.random.key(0), sampling, eos)
    n, ended = int(out.lengths[0]), bool(out.ended[0])
    return Reply(model.tokenizer.decode(out.tokens[0, : n - ended]), len(ids), n, ended)


@functools.partial(jax.jit, static_argnums=0)
def all_logits(model, variables, tokens):
    hidden, _ = model.apply(variables, tokens, jnp.arange(tokens.shape[1])[None])
    return model.apply(variables, hidden[0], method="unembed")


def log_prob(model, chat, continuation):
    """By one full forward pass and numpy's softmax."""
    prompt, ids = prompt_of(model, chat), model.tokenizer.encode(continuation)
    tokens = np.zeros((1, 128), np.int32)
    tokens[0, : len(prompt + ids)] = prompt + ids
    logits = np.asarray(all_logits(model.model, model.variables, tokens), np.float64)
    logits -= logits.max(-1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return sum(log_probs[len(prompt) - 1 + i, token] for i, token in enumerate(ids)), len(ids)


def count(monkeypatch, name, measure):
    """Adds up measure(arguments, result) over the calls of one of the module's programs."""
    module = prefill if name == "_read" else engine
    calls, program = [], getattr(module, name)

    def counted(*args):
        before = measure(args, None)
        out = program(*args)
        calls.append(measure(args, out) if before is None else measure(args, out) - before)
        return out

    monkeypatch.setattr(module, name, counted)
    return calls


def test_greedy_replies_are_those_of_generate(model, chats):
    got = model.complete(chats, GREEDY, "policy")
    assert got == [generated(model, chat, GREEDY) for chat in chats]
    assert {True, False} == {reply.ended for reply in got} and len({reply.tokens for reply in got}) > 4


@pytest.mark.parametrize(
    "options",
    [
        {"rows": 2},
        {"rows": 8, "refill": 0.01},
        {"refill": 1.0},
        {"rows": 64},
    ],
)
def test_replies_do_not_depend_on_the_batching(model, chats, replies, options):
    assert dataclasses.replace(model, **options).complete(chats, WARM, "policy", seed=3) == replies


def test_a_reply_depends_on_its_own_chat_and_place_only(model, chats, replies):
    order = [7, 1, 12, 3, 4, 5, 11, 0, 8, 9, 10, 6, 2]
    got = model.complete([chats[i] for i in order], WARM, "policy", seed=3)
    stayed = [i for i, chat in enumerate(order) if i == chat]
    assert len(stayed) == 7 and [got[i] for i in stayed] == [replies[i] for i in stayed]
    assert model.complete(chats[:3], WARM, "policy", seed=3) == replies[:3]


def test_seed_and_role_change_the_draws_and_nothing_else_does(model, chats, replies):
    assert model.complete(chats, WARM, "policy", seed=3) == replies
    assert model.complete(chats, WARM, "policy", seed=4) != replies
    assert model.complete(chats, WARM, "policy", seed=3 + 2**32) != replies
    assert model.complete(chats, WARM, "value", seed=3) != replies


def test_duplicate_prompts_are_read_once_and_each_gets_a_reply(model, chats, monkeypatch):
    asked = [chats[0]] * 6 + [chats[1]] * 5
    keeping = dataclasses.replace(model, kv_session=Session(1.0))
    got = keeping.complete(asked, WARM, "policy")
    assert got == model.complete(asked, WARM, "policy")
    both = [prompt_of(model, chat) for chat in chats[:2]]
    assert keeping.kv_session.counts.read < sum(map(len, both)) + prefill.SHARED
    assert len(set(got[:6])) > 3 and len(set(got[6:])) > 3
    begun = count(monkeypatch, "_begin", lambda args, out: out and int((args[3].source >= 0).sum()))
    admitted = count(monkeypatch, "_admit_texts", lambda args, out: out and int((args[2].source >= 0).sum()))
    model.complete(asked, WARM, "policy")
    assert sum(begun) + sum(admitted) == 11 and sum(begun) == 4
    begun.clear(), admitted.clear()
    got = model.complete(asked, GREEDY, "policy")
    assert sum(begun) == 2 and not admitted and got == [got[0]] * 6 + [got[6]] * 5


def test_refill_takes_fewer_steps_than_whole_batches(model, chats, monkeypatch):
    steps = count(monkeypatch, "_decode", lambda args, out: int((out or args[2]).index))
    many = chats * 4
    totals = []
    for refill in (0.25, 1.0):
        steps.clear()
        dataclasses.replace(model, refill=refill).complete(many, WARM, "policy")
        totals.append(sum(steps))
    assert totals[0] < 0.8 * totals[1]


def test_what_all_prompts_begin_with_is_read_once(model, chats, monkeypatch):
    monkeypatch.setattr(engine_shapes, "LEAST_PREFIX", 32)
    prefixes = count(monkeypatch, "_decode", lambda args, out: out and args[7] and args[7].k.shape[1])
    model.complete(chats, WARM, "policy")
    assert set(prefixes) == {32} and len(prompt_of(model, chats[0])) > 32
    prefixes.clear()
    model.complete([*chats, Chat.of("Hello")], WARM, "policy")
    assert set(prefixes) == {None}


def test_a_model_that_never_ends_is_cut(model, chats):
    endless = dataclasses.replace(model, tokenizer=dataclasses.replace(model.tokenizer, eos_ids=(511,)))
    params = {**model.variables["params"], "lm_head": model.variables["params"]["lm_head"].at[:, 511].set(0.0)}
    got = endless.with_variables({"params": params}).complete(chats, GREEDY, "policy")
    assert [(reply.tokens, reply.ended) for reply in got] == [(20, False)] * 13


def test_other_weights_of_one_config_compile_nothing(model, chats, replies):
    model.complete(chats, GREEDY, "policy")
    model.score(chats, [["up", "down it goes"]] * 13, "policy")
    programs = (prefill.load, prefill._store, prefill._read, engine._log_probs, engine._decode)
    programs += (engine._begin, engine._admit_texts)
    before = [program._cache_size() for program in programs]
    other = LocalModel(Transformer(CONFIG), other_weights(model), model.tokenizer, rows=4)
    assert other.complete(chats, WARM, "policy", seed=3) != replies
    other.complete(chats[::-1], dataclasses.replace(WARM, temperature=0.7, max_tokens=18), "value", seed=9)
    other.complete(chats, GREEDY, "policy")
    other.score(chats, [["down it goes", "left"]] * 13, "policy")
    model.with_variables(other.variables).complete(chats, WARM, "policy")
    assert [program._cache_size() for program in programs] == before


def test_scores_are_those_of_a_full_forward_pass(model, chats):
    texts = [["up", "down and then up again", "left"][: i % 4] for i in range(13)]
    keeping = dataclasses.replace(model, kv_session=Session(1))
    for variant in (model, dataclasses.replace(model, rows=64), keeping):
        got = variant.score(chats, texts, "policy")
        assert [len(row) for row in got] == [i % 4 for i in range(13)]
        for chat, row, scores in zip(chats, texts, got, strict=True):
            want = [log_prob(model, chat, text) for text in row]
            np.testing.assert_allclose([s.log_prob for s in scores], [p for p, _ in want], rtol=1e-4, atol=1e-3)
            assert [s.tokens for s in scores] == [n for _, n in want]


def test_the_nano_model_matches_plain_computation():
    loaded = load_model("nano")
    nano = LocalModel(Transformer(loaded.config), {"params": loaded.params}, loaded.tokenizer, rows=4)
    asked = [Chat.of(f"Say {i} words.", "You are brief.") for i in range(5)]
    sampling = Sampling(max_tokens=16, temperature=0.0)
    got = nano.complete(asked, sampling, "policy")
    assert got == [generated(nano, chat, sampling) for chat in asked]
    assert all("<|" not in reply.text for reply in got)
    for chat, (score, other) in zip(asked, nano.score(asked, [["go up", "I"]] * 5, "policy"), strict=True):
        np.testing.assert_allclose(score.log_prob, log_prob(nano, chat, "go up")[0], atol=1e-3)
        np.testing.assert_allclose(other.log_prob, log_prob(nano, chat, "I")[0], atol=1e-3)


def test_empty_calls_return_nothing(model):
    assert model.complete([], WARM, "policy") == [] and model.score([], [], "policy") == []
    assert model.score([Chat.of("Hello")], [[]], "policy") == [[]]


def test_what_does_not_fit_is_refused_before_any_work(model, chats, monkeypatch):
    read = count(monkeypatch, "_read", lambda args, out: 0)
    long = Chat.of("go up " * 33)
    n = len(prompt_of(model, long))
    assert 172 < n < 192
    with pytest.raises(ValueError, match=f"chat 13: {n} prompt tokens and 20 new ones take {n + 20} .* model has 192"):
        model.complete([*chats, long], WARM, "policy")
    with pytest.raises(ValueError, match=f"chat 0: {n} prompt tokens"):
        model.score([long], [["go up " * 20]], "policy")
    with pytest.raises(ValueError, match="chat 1: continuation '' has no tokens"):
        model.score(chats[:2], [["up"], ["down", ""]], "policy")
    with pytest.raises(ValueError, match="2 chats but 1 lists"):
        model.score(chats[:2], [["up"]], "policy")
    assert not read


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"rows": 0}, "rows is 0"),
        ({"refill": 0.0}, "refill is 0.0"),
        ({"refill": 1.5}, "refill is 1.5"),
        ({"model": Transformer(dataclasses.replace(CONFIG, vocab_size=100))}, "512 tokens but .* 100"),
        ({"tokenizer": dataclasses.replace(load_tokenizer("nano"), eos_ids=())}, "end-of-sequence"),
    ],
)
def test_bad_options_are_refused(model, wrong, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(model, **wrong)
