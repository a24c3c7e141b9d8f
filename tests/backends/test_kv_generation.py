"""The local model with and without a key/value cache."""

import dataclasses

import jax
import numpy as np
import pytest

from nlrl_jax.backends import kv_generation
from nlrl_jax.backends.kv_cache import KVCache
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.lm import acting, decode
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.programs import Programs
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.types import Chat, Sampling
from nlrl_jax.weights.load import load_tokenizer
from tests.lm.noise import noisy_params

CONFIG = ModelConfig(512, 16, 24, 2, 4, 2, 8, 640, qk_norm=True)
GREEDY = Sampling(max_tokens=8, temperature=0.0)
WARM = Sampling(max_tokens=8, temperature=1.2)
RULES = "You walk in a room of walls, doors, keys and boxes, and you see only what is in front of you. Say what to do. "
WORDS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "a red box is ahead", "a wall is left")


@pytest.fixture(scope="module")
def plain():
    """Random weights, peaked; chats are rendered as they are."""
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer = dataclasses.replace(load_tokenizer("nano"), chat_template=template, eos_ids=(2, *range(10, 512, 40)))
    return LocalModel(Transformer(CONFIG), noisy_params(CONFIG, 0.5), tokenizer, rows=8)


@pytest.fixture
def cached(plain):
    return dataclasses.replace(plain, cache_mb=1.0)


def length(model, text):
    return len(model.tokenizer.encode(text))


def episode(model, steps=3, games=2, sampling=WARM, rules=RULES):
    """Calls that grow and fork as a planner's do -> everything the model said, in numbers and texts."""
    rng = np.random.default_rng(0)
    texts, said = [f"{rules}Goal {g}.\n" for g in range(games)], []
    for step in range(steps):
        forks = [f"{text}> {word}\n" for text in texts for word in WORDS[:3]]
        scores = model.score([Chat.of(text) for text in texts], [["> " + word for word in WORDS[:3]]] * games, "prior")
        for depth in range(2):
            replies = model.complete([Chat.of(fork) for fork in forks], sampling, "imagine", seed=10 * step + depth)
            forks = [fork + reply.text + "\n" for fork, reply in zip(forks, replies)]
            said += replies
        scores += model.score([Chat.of(fork) for fork in forks], [[" GOOD", " BAD"]] * len(forks), "critic")
        said += [score for row in scores for score in row]
        texts = [f"{text}> {rng.choice(WORDS[:3])}\n{rng.choice(WORDS[3:])}\n" for text in texts]
    return said


def agree(got, want):
    assert len(got) == len(want)
    for a, b in zip(got, want):
        if hasattr(a, "log_prob"):
            assert a.tokens == b.tokens and a.log_prob == pytest.approx(b.log_prob, abs=1e-4)
        else:
            assert a == b


@pytest.fixture(scope="module")
def expected(plain):
    return episode(plain)


def test_growing_and_forking_chats_are_answered_as_without_a_cache(cached, expected):
    agree(episode(cached), expected)
    stats = cached.cache.stats
    assert stats.reused > 2 * stats.read and not stats.evicted
    read = stats.read
    agree(episode(cached), expected)
    # Only what a hidden state is wanted of: the last token of a prompt and the continuations.
    assert stats.read - read < read
    agree(episode(cached, sampling=GREEDY), episode(dataclasses.replace(cached, cache_mb=0), sampling=GREEDY))


def test_a_large_model_answers_alike(plain, expected, monkeypatch):
    """One array per layer, and rounds without the rows that have ended."""
    rounds, write_round = [], kv_generation._write_round
    keep = lambda net, texts, *others: rounds.append(len(texts)) or write_round(net, texts, *others)
    monkeypatch.setattr(acting, "LARGE", 0)
    monkeypatch.setattr(kv_generation, "SPLIT", 2)
    monkeypatch.setattr(decode, "WAIT", 0)
    monkeypatch.setattr(kv_generation, "_write_round", keep)
    model = dataclasses.replace(plain, cache_mb=1.0)  # made after the change
    agree(episode(model), expected)
    assert isinstance(model._views["params"]["blocks"], tuple)
    assert rounds[0] == 6 > min(rounds)


@pytest.mark.parametrize("options", [pytest.param({"rows": 2}, marks=pytest.mark.slow), {"cache_mb": 0.06}])
def test_neither_rows_nor_a_cache_that_is_too_small_change_an_answer(plain, expected, options):
    small = dataclasses.replace(plain, **({"cache_mb": 1.0} | options))
    agree(episode(small), expected)
    if "cache_mb" in options:
        assert small.cache.stats.evicted > small.cache.capacity >= len(small.cache)


def test_a_text_loses_its_end_first():
    """What lost its beginning would be found after another text that begins in the same slot."""
    cache, none = KVCache(CONFIG, 16 * 256 / 1e6), np.zeros(0, np.int64)
    assert cache.capacity == 16 and cache.room(12)
    cache.start()
    slots = cache.add(range(12), none, 0)
    cache.start()
    assert cache.room(8) and len(cache) == 8
    np.testing.assert_array_equal(cache.find(range(12), none, 0), slots[:8])


def test_a_text_longer_than_the_cache_and_one_longer_than_a_read(plain, monkeypatch):
    long = [Chat.of(RULES * n + "And then?") for n in (1, 9)]
    want = plain.complete(long, WARM, "policy"), plain.score(long, [["up", "down"]] * 2, "policy")
    small = dataclasses.replace(plain, cache_mb=200 * 256 / 1e6)
    assert small.cache.capacity == 200 < length(plain, RULES * 9)
    agree(small.complete(long, WARM, "policy"), want[0])
    agree(sum(small.score(long, [["up", "down"]] * 2, "policy"), []), sum(want[1], []))
    monkeypatch.setattr(kv_generation, "MOST", 16)
    large = dataclasses.replace(plain, cache_mb=1)
    agree(large.complete(long, WARM, "policy"), want[0])
    agree(sum(large.score(long, [["up", "down"]] * 2, "policy"), []), sum(want[1], []))


def test_a_token_is_read_once(cached):
    """Behind n forks, in one call and in the next."""
    shared = RULES + "Go.\n"
    forks = [Chat.of(f"{shared}{word}\n") for word in WORDS]
    cached.complete(forks, GREEDY, "policy")
    texts = {tuple(cached.tokenizer.encode(chat.messages[0]["content"])) for chat in forks}
    nodes = {text[:n] for text in texts for n in range(1, len(text) + 1)}
    assert cached.cache.stats.read == len(nodes)
    cached.complete(forks, GREEDY, "policy")
    assert cached.cache.stats.read == len(nodes) + len(forks)  # the last token of each, for what comes after it


def test_what_the_model_has_written_is_scored_without_reading_it_again(cached, plain):
    """But for the last token, which never went through the network, and words that were not written."""
    text = RULES + "Go.\n"
    tokens = (*cached.tokenizer.encode("go on and turn"), 3)
    prompt = tuple(cached.tokenizer.encode(text))
    draw = kv_generation.Draw(GREEDY, np.zeros(CONFIG.vocab_size, bool), jax.random.key(0))
    network = kv_generation.Network(cached.model, cached.variables, cached.cache, cached.variables, cached.row_steps)
    written = tuple(kv_generation.write(network, [prompt], [0], 1, draw)[0][0])
    pairs = [(prompt, written), (prompt, written[:4]), (prompt, (*written[:4], 7)), (prompt, tokens)]
    read = cached.cache.stats.read
    want = plain._log_probs((plain.model, plain.variables), [prompt], [(0, ids) for _, ids in pairs])
    got = kv_generation.log_probs(network, pairs[:3], 8)
    assert cached.cache.stats.read == read + 2
    got |= {3: kv_generation.log_probs(network, pairs[3:], 8)[0]}
    assert [got[i] for i in range(4)] == pytest.approx(want, abs=1e-4)


def test_other_weights_start_with_nothing(cached, plain):
    chats = [Chat.of(RULES + word) for word in WORDS]
    cached.complete(chats, GREEDY, "policy")
    variables = jax.tree.map(lambda x: 1.1 * x, plain.variables)
    other = cached.with_variables(variables)
    assert len(other.cache) == 0 < len(cached.cache)
    agree(other.complete(chats, GREEDY, "policy"), plain.with_variables(variables).complete(chats, GREEDY, "policy"))


def test_a_failed_call_leaves_the_cache_correct(cached, plain, monkeypatch):
    chats = [Chat.of(RULES + word) for word in WORDS]
    want = plain.complete(chats, GREEDY, "policy")

    def fail(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(kv_generation, "_read", fail)
    with pytest.raises(KeyboardInterrupt):
        cached.complete(chats, GREEDY, "policy")
    monkeypatch.undo()
    agree(cached.complete(chats, GREEDY, "policy"), want)


def test_few_programs_serve_a_text_that_grows(cached):
    programs = (kv_generation._read, kv_generation._reply, kv_generation._log_probs)
    before = [program._cache_size() for program in programs]
    episode(cached, steps=6, rules=RULES + "Again. ")
    added = [program._cache_size() - n for program, n in zip(programs, before)]
    assert sum(added) <= 6


@pytest.mark.parametrize("cache_mb", [0, 1])
def test_a_reply_ends_before_the_first_stop_string(plain, cache_mb):
    model = dataclasses.replace(plain, cache_mb=cache_mb)
    chats = [Chat.of(f"{RULES}{word}") for word in WORDS]
    free = model.complete(chats, dataclasses.replace(GREEDY, max_tokens=30), "policy")
    text = max((reply.text for reply in free), key=len)
    single = next(iter(text[3:]))
    for stop in ([single], [text[5:9]], ["never written", text[8:10], text[4:7]]):
        got = model.complete(chats, dataclasses.replace(GREEDY, max_tokens=30), "policy", stop=stop)
        for reply, whole in zip(got, free, strict=True):
            cut = min((whole.text.find(s) for s in stop if s in whole.text), default=None)
            assert reply.text == (whole.text if cut is None else whole.text[:cut])
            assert reply.ended == (whole.ended or cut is not None)
    with pytest.raises(ValueError, match="stop is"):
        model.complete(chats, GREEDY, "policy", stop="\n")
    with pytest.raises(ValueError, match="stop is"):
        model.complete(chats, GREEDY, "policy", stop=[""])


def test_programs_that_are_forgotten_change_nothing(cached, expected, monkeypatch):
    owner = Programs()
    for name in ("_read", "_reply"):
        owner.own(getattr(kv_generation, name))
    forgotten, forget = [], owner.forget

    def counted():
        forgotten.append(None)
        forget()
        owner.most = 0

    owner.most, owner.forget = 0, counted
    monkeypatch.setattr(kv_generation, "PROGRAMS", owner)
    agree(episode(cached), expected)
    assert len(forgotten) > 2
