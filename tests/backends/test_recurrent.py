"""A model with recurrent layers: what the engine says from snapshots of states, against whole texts read alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.backends import engine, engine_shapes, prefill
from nlrl_jax.backends.session import Session, TextCache, state_bytes, token_bytes
from nlrl_jax.lm import acting
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.families import FULL, LINEAR, DeltaNetSizes
from nlrl_jax.lm.generate import generate
from nlrl_jax.lm.placement import gathered
from nlrl_jax.lm.sharding import make_mesh, shard
from nlrl_jax.lm.transformer import Transformer, param_specs
from nlrl_jax.types import Sampling
from tests.lm.noise import noisy_params

CONFIG = ModelConfig(
    40, 16, 24, 4, 4, 2, 6, 128, layer_types=(LINEAR, FULL) * 2, norm_offset=True, qk_norm=True,
    gated_attention=True, partial_rotary_factor=0.34, delta_net=DeltaNetSizes(2, 4, 3, 5, 4), norm_eps=1e-2,
)  # fmt: skip
MODEL = Transformer(CONFIG)
GREEDY, WARM = Sampling(max_tokens=12, temperature=0.0), Sampling(max_tokens=12, temperature=1.5)
ENDS = tuple(range(3, 40, 9))
LONGEST = 96


@pytest.fixture(scope="module")
def network():
    variables = noisy_params(CONFIG, 0.2)
    return prefill.Network(MODEL, variables, variables, variables, 8, 0.25)


@pytest.fixture(scope="module")
def alone(network):
    """text -> log-probabilities [len(text), V] of the tokens after each of its own."""

    @jax.jit
    def read(tokens):
        hidden, _ = MODEL.apply(network.variables, tokens[None], jnp.arange(LONGEST)[None])
        return jax.nn.log_softmax(MODEL.apply(network.variables, hidden[0], method="unembed"))

    return lambda text: np.asarray(read(jnp.pad(jnp.array(text, jnp.int32), (0, LONGEST - len(text)))))[: len(text)]


@pytest.fixture(scope="module")
def greedy(network):
    """prompt -> the reply of `lm.generate` to it alone."""
    run = jax.jit(generate, static_argnums=(0, 5, 6))

    def reply(prompt):
        row = jnp.array([(0,) * (64 - len(prompt)) + prompt], jnp.int32)
        said = run(MODEL, network.variables, row, jnp.array([len(prompt)]), jax.random.key(0), GREEDY, ENDS)
        return tuple(said.tokens[0, : said.lengths[0]].tolist()), np.asarray(said.log_probs[0, : said.lengths[0]])

    return reply


@pytest.fixture
def session():
    """Room for 400 snapshots, and as much for tokens."""
    return Session(400.5 * 2 * state_bytes(CONFIG) / 1e6)


def random_text(seed, length):
    return tuple(np.random.default_rng(seed).integers(0, 40, length).tolist())


def write(network, session, prompts, sampling=GREEDY, seed=0):
    """Written replies, in the order of the prompts, of which some may be equal."""
    distinct = list(dict.fromkeys(prompts))
    draw = engine.Draw(sampling, np.isin(np.arange(40), ENDS), jax.random.key(seed))
    said = engine.write(network, session, distinct, [distinct.index(prompt) for prompt in prompts], draw)
    return [said[i] for i in range(len(prompts))]


def check_replies(greedy, prompts, written):
    for prompt, said in zip(prompts, written, strict=True):
        tokens, log_probs = greedy(prompt)
        assert said.tokens == tokens
        np.testing.assert_allclose(said.log_probs, log_probs, atol=1e-4)


def check_scores(alone, pairs, scores):
    for (prompt, continuation), log_prob in zip(pairs, scores, strict=True):
        rows = alone(prompt + continuation)[len(prompt) - 1 : -1]
        assert log_prob == pytest.approx(rows[np.arange(len(continuation)), continuation].sum(), abs=2e-4)


def episode(network, session, steps=3, check=None):
    """Prompts that go on after earlier prompts and replies, forks of them, scores of words after each."""
    texts, everything = [random_text(seed, 20) for seed in range(5)], []
    for step in range(steps):
        forks = [text + random_text(word, 2) for text in texts for word in range(2)]
        prompts = [*texts, *forks, texts[0]]
        sampling = GREEDY if check else WARM
        written = write(network, session, prompts, sampling, seed=step)
        pairs = [(text, random_text(word, 1 + word)) for text in texts for word in range(3)]
        scores = engine.score(network, session, pairs)
        if check:
            check(prompts, written, pairs, scores)
        everything += [*written, *scores]
        texts = [text + said.tokens[:-1] + random_text(step, 4) for text, said in zip(texts, written)]
    return everything


@pytest.mark.parametrize("megabytes", [0, None])
@pytest.mark.parametrize("exact", [False, True])
def test_what_is_said_equals_whole_texts_read_alone(network, session, greedy, alone, megabytes, exact, monkeypatch):
    """More prompts than rows, equal ones, forks, and texts that go on after replies, in few shapes and in many."""
    monkeypatch.setattr(acting, "is_large", lambda config: exact)

    def check(prompts, written, pairs, scores):
        check_replies(greedy, prompts, written)
        check_scores(alone, pairs, scores)

    episode(network, Session() if megabytes == 0 else session, 3, check)


def close(got, want):
    """Replies and scores of two episodes."""
    for one, other in zip(got, want, strict=True):
        if isinstance(one, float):
            assert one == pytest.approx(other, abs=2e-4)
        else:
            assert one.tokens == other.tokens and one.ended == other.ended
            np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-4)


@pytest.fixture(scope="module")
def sampled(network):
    return episode(network, Session())


@pytest.mark.parametrize("rows, snapshots", [(8, 20), (8, 11), pytest.param(3, 6, marks=pytest.mark.slow)])
def test_sampled_replies_do_not_depend_on_rows_or_snapshots(network, sampled, rows, snapshots):
    session = Session((snapshots + 0.5) * 2 * state_bytes(CONFIG) / 1e6)
    close(episode(network._replace(rows=rows), session), sampled)
    assert session.texts.snapshots.number == snapshots >= session.texts.snapshots.num_used


def test_a_session_without_room_for_the_snapshots_of_a_call_is_left_alone(network, sampled):
    session = Session(5 * 2 * state_bytes(CONFIG) / 1e6)
    close(episode(network, session), sampled)
    assert session.texts is None


def test_a_prefix_has_a_snapshot_that_stays(network, greedy, alone, monkeypatch):
    """Texts that begin alike, in a cache with room for few others; and weights by layer."""
    monkeypatch.setattr(acting, "is_large", lambda config: True)
    monkeypatch.setattr(acting, "LARGE", 0)
    network = network._replace(acting=acting.views(MODEL, network.variables), rows=3)
    session = Session(13.5 * 2 * state_bytes(CONFIG) / 1e6)
    prefix = random_text(99, 35)
    for step in range(3):
        prompts = [prefix + random_text(10 * step + i, 3 + i) for i in range(7)]
        check_replies(greedy, prompts, write(network, session, prompts))
        pairs = [(prompt, random_text(word, 2)) for prompt in prompts for word in range(2)]
        check_scores(alone, pairs, engine.score(network, session, pairs))
    assert session.texts.prefix == prefix[:32] and session.texts.snapshots.permanent >= 0


def test_long_texts_are_read_in_chunks_after_their_state(network, session, greedy, alone, monkeypatch):
    """A row with few new tokens beside one with many: chunks of padding before its first one leave its state alone."""
    monkeypatch.setattr(engine_shapes, "CHUNKS", {2: 8, 16: 4})
    texts = [random_text(seed, 30) for seed in range(4)]
    write(network, session, texts)
    prompts = [text + random_text(7, new) for text, new in zip(texts, (1, 3, 16, 30))] + [random_text(8, 50)]
    check_replies(greedy, prompts, write(network, session, prompts))
    pairs = [(text, random_text(9, new)) for text, new in zip(prompts, (1, 5, 20, 2, 30))]
    check_scores(alone, pairs, engine.score(network, session, pairs))


def test_what_has_a_state_is_not_read_again(network, session):
    text, other = random_text(0, 40), random_text(1, 20)
    (said,) = write(network, session, [text])
    counts = session.counts
    assert counts.read == 39
    # After its reply, whose last token was never read; a fork of it is read from the end of the earlier prompt.
    write(network, session, [text + said.tokens + other])
    assert counts.read == 39 + 20
    write(network, session, [text + other])
    assert counts.read == 39 + 20 + 20
    # Words after a prompt that is new: it is read once.
    engine.score(network, session, [(other, (word, 5, word)) for word in range(8)])
    assert counts.read == 39 + 40 + 19 + 8 * 3
    # One that goes on with a text of the same call waits for it.
    write(network, session, [text[::-1], text[::-1] + other])
    assert counts.read == 39 + 40 + 43 + 39 + 20
    # So do forks, for what they begin with, if that is long; and a later fork goes on from there.
    stem, read = random_text(2, 30), counts.read
    write(
        network, session, [*(stem + (fork, 0, 1) for fork in range(4)), *(other[:9] + (fork, 0) for fork in (30, 31))]
    )
    assert counts.read == read + 30 + 4 * 2 + 2 * 10
    write(network, session, [stem + (9, 9, 9)])
    assert counts.read == read + 30 + 4 * 2 + 2 * 10 + 2


def test_the_states_of_a_call_are_kept_apart():
    """Which snapshot goes: that which was not used for longest, never the prefix's or one of this tick."""
    cache = TextCache(100, snapshots=4)
    slots = [cache.add(text) for text in ((1, 2), (1, 2, 3), (4, 5))]
    for text in slots[:2]:
        assert cache.add_snapshot(text)
        cache.claim(text)
    cache.snapshots.permanent = int(slots[0][-1])
    assert [cache.snapshot(text, -1) for text in (*slots, slots[0][:0])] == [1, 2, -1, 0]
    assert cache.add_snapshot(slots[2]) and cache.add_snapshot(slots[0][:0])
    cache.claim(slots[2])
    assert not cache.add_snapshot(cache.add((6,)))  # all of the others are of this tick
    cache.tick()
    longer = cache.add((1, 2, 3, 4))  # uses the second
    assert cache.known_length(longer) == 3 and cache.known_length(longer, 2) == 2 and cache.known_length(longer, 1) == 0
    assert cache.add_snapshot(longer) and cache.known_length(slots[2]) == 0
    assert cache.filled[slots[2]].all()
    cache.tick()
    assert cache.add_snapshot(slots[2]) and cache.known_length(longer) == 2  # the prefix's stays


def test_states_of_forgotten_tokens_are_dropped():
    cache = TextCache(6, snapshots=3)
    for text in ((1, 2, 3), (4, 5, 6), (7, 8, 9), (1, 2, 3)):
        cache.tick()
        slots = cache.add(text)
        assert cache.known_length(slots) == 0 and cache.add_snapshot(slots)
        cache.claim(slots)
    assert cache.resumable.sum() == 2


def test_room_is_shared_between_tokens_and_states(network):
    assert state_bytes(CONFIG) == 2 * 4 * (3 * 32 + 4 * 3 * 5)
    session = Session(1)
    with session.open(CONFIG, network.weights, [(1, 2)], 1) as cache:
        assert cache.capacity == int(5e5 / token_bytes(CONFIG))
        assert cache.snapshots.number == int(5e5 / state_bytes(CONFIG))
        assert cache.device_sizes == (cache.first_slots, 64)
        for n in range(65):
            assert cache.add_snapshot(cache.add((n,)))
        assert cache.device_sizes == (min(4 * cache.first_slots, cache.capacity), 256)
    with Session().open(CONFIG, network.weights, [(1, 2), (3, 4)], 8) as cache:
        assert not cache.lasting and cache.snapshots.number == 8 == cache.device_sizes[1]


@pytest.mark.parametrize("lasting", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_eight_devices_say_what_one_says(network, sampled, session, lasting):
    if jax.device_count() != 8:
        pytest.skip(f"needs 8 devices, there are {jax.device_count()}")
    model = Transformer(CONFIG, mesh=make_mesh(2, 2, 2))
    variables = shard(network.variables, {"params": param_specs(model)["params"]}, model.mesh)
    variables = jax.jit(gathered, static_argnums=0)(model, variables)
    placed = network._replace(model=model, variables=variables, acting=variables)
    said = episode(placed, session if lasting else Session(), steps=2)
    close(said, sampled[: len(said)])
