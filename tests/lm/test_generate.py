"""Sampling against the plain computation: full forward passes, numpy's softmax, the scorer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from nlrl_jax.lm import generate as module
from nlrl_jax.lm import sharding, transformer
from nlrl_jax.lm.cache import prefix_length
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.generate import compute_prefix, generate, left_pad, row_sizes, row_steps, row_use
from nlrl_jax.lm.sampling import LARGE, _draw, _place, sample_token
from nlrl_jax.lm.score import score as score_
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.types import Sampling
from tests.lm.noise import noisy_params

CONFIG = ModelConfig(40, 16, 24, 2, 4, 2, 8, 64, qk_norm=True)
MODEL = Transformer(CONFIG)
GREEDY = Sampling(max_tokens=10, temperature=0.0)
NO_EOS = (99, -1)  # outside the vocabulary: replies run on
B, S = 4, 7
LENGTHS = jnp.array([7, 1, 4, 3])

run = jax.jit(generate, static_argnums=(0, 5, 6))
score = jax.jit(score_, static_argnums=0)
prefix_of = jax.jit(compute_prefix, static_argnums=0)


@pytest.fixture(scope="module")
def variables():
    return noisy_params(CONFIG, 1.0)


@pytest.fixture(scope="module")
def prompts():
    """Right-padded int32 [B, S], of different lengths."""
    tokens = jax.random.randint(jax.random.key(5), (B, S), 0, 40)
    return jnp.where(jnp.arange(S) < LENGTHS[:, None], tokens, 0)


@pytest.fixture(scope="module")
def free(variables, prompts):
    """Greedy replies that nothing ends."""
    return run(MODEL, variables, left_pad(prompts, LENGTHS), LENGTHS, jax.random.key(0), GREEDY, NO_EOS)


@functools.partial(jax.jit, static_argnums=0)
def next_logits(model, variables, tokens, lengths):
    """Logits [B, V] after right-padded rows, by one full forward pass without a cache."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    hidden, _ = model.apply(variables, tokens, positions)
    last = jnp.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)[:, 0]
    return model.apply(variables, last, method="unembed")


def greedy_by_full_forwards(variables, tokens, lengths, steps):
    tokens, lengths = np.pad(tokens, ((0, 0), (0, steps))), np.array(lengths)
    replies = []
    for _ in range(steps):
        choice = np.asarray(next_logits(MODEL, variables, tokens, lengths)).argmax(-1)
        tokens[np.arange(len(tokens)), lengths] = choice
        lengths += 1
        replies.append(choice)
    return np.stack(replies, axis=1)


class Counting:
    """A model that counts its forward passes, and the rows of those that read prompts and of the others."""

    def __init__(self, model):
        self.model, self.config, self.mesh, self.passes = model, model.config, model.mesh, 0

    def apply(self, variables, x, *args, **kwargs):
        if kwargs.get("method") == "unembed":
            jax.debug.callback(self._count)
        elif x.shape[1] == 1:
            jax.debug.callback(lambda: self.rows.append(x.shape[0]))
        else:
            jax.debug.callback(lambda: self.read.append(x.shape[0]))
        return self.model.apply(variables, x, *args, **kwargs)

    def _count(self):
        self.passes += 1

    def __call__(self, *args):
        self.passes, self.rows, self.read = 0, [], []
        out = jax.block_until_ready(jax.jit(functools.partial(generate, self), static_argnums=(4, 5))(*args))
        jax.effects_barrier()
        return out


def test_left_pad():
    rows = jnp.array([[1, 2, 0, 0], [3, 0, 0, 0], [4, 5, 6, 7], [9, 9, 9, 9]])
    got = left_pad(rows, jnp.array([2, 1, 4, 0]))
    np.testing.assert_array_equal(got, [[0, 0, 1, 2], [0, 0, 0, 3], [4, 5, 6, 7], [0, 0, 0, 0]])


def test_greedy_equals_full_forwards(variables, prompts, free):
    want = greedy_by_full_forwards(variables, np.asarray(prompts), LENGTHS, GREEDY.max_tokens)
    np.testing.assert_array_equal(free.tokens, want)
    assert len(np.unique(want)) > 5  # the model does not just repeat itself
    np.testing.assert_array_equal(free.lengths, GREEDY.max_tokens)
    assert not free.ended.any()  # max_tokens cut them


def test_shared_prefix_equals_prefix_in_every_prompt(variables, prompts):
    prefix = jnp.array([3, 1, 4, 1, 5])
    kv = prefix_of(MODEL, variables, prefix)
    assert prefix_length(kv) == 5 and prefix_length(compute_prefix(MODEL, variables, jnp.zeros(0, jnp.int32))) == 0
    out = run(MODEL, variables, left_pad(prompts, LENGTHS), LENGTHS, jax.random.key(0), GREEDY, NO_EOS, kv)
    pasted = np.concatenate([np.tile(prefix, (B, 1)), prompts], axis=1)
    want = greedy_by_full_forwards(variables, pasted, LENGTHS + 5, GREEDY.max_tokens)
    np.testing.assert_array_equal(out.tokens, want)
    # and the log-probabilities are those of the scorer, with the prefix shared or pasted in
    got = score(MODEL, variables, left_pad(prompts, LENGTHS), LENGTHS, out.tokens, kv)
    np.testing.assert_allclose(out.log_probs, got, atol=1e-4)
    got = score(MODEL, variables, left_pad(jnp.asarray(pasted), LENGTHS + 5), LENGTHS + 5, out.tokens)
    np.testing.assert_allclose(out.log_probs, got, atol=1e-4)


def test_log_probs_of_sampled_tokens_are_the_scorer_s(variables, prompts):
    """At temperature 1 and without the cuts, whatever the sampler did."""
    sampling = Sampling(max_tokens=10, temperature=1.7, top_k=9, top_p=0.9)
    padded = left_pad(prompts, LENGTHS)
    out = run(MODEL, variables, padded, LENGTHS, jax.random.key(1), sampling, NO_EOS)
    np.testing.assert_allclose(out.log_probs, score(MODEL, variables, padded, LENGTHS, out.tokens), atol=1e-4)
    again = run(MODEL, variables, padded, LENGTHS, jax.random.key(1), sampling, NO_EOS)
    jax.tree.map(np.testing.assert_array_equal, out, again)
    other = run(MODEL, variables, padded, LENGTHS, jax.random.key(2), sampling, NO_EOS)
    assert (other.tokens != out.tokens).any()


def test_ends_at_any_eos_id_and_stops_when_every_row_has_ended(prompts):
    # Smaller weights than elsewhere: a sum in another order, as of fewer rows, moves a log-probability less.
    variables = noisy_params(CONFIG, 0.5)
    free = run(MODEL, variables, left_pad(prompts, LENGTHS), LENGTHS, jax.random.key(0), GREEDY, NO_EOS)
    tokens, log_probs = np.asarray(free.tokens), np.asarray(free.log_probs)
    eos = tuple({int(tokens[0, 0]), int(tokens[1, 2]), int(tokens[2, 4]), int(tokens[3, 1])})
    is_eos = np.isin(tokens, eos)
    lengths = is_eos.argmax(axis=1) + 1
    assert is_eos.any(axis=1).all() and len(set(lengths)) > 1 and lengths.max() < GREEDY.max_tokens
    counting = Counting(MODEL)
    out = counting(variables, left_pad(prompts, LENGTHS), LENGTHS, jax.random.key(0), GREEDY, eos)
    np.testing.assert_array_equal(out.lengths, lengths)
    assert out.ended.all()
    kept = np.arange(GREEDY.max_tokens) < lengths[:, None]
    np.testing.assert_array_equal(out.tokens, np.where(kept, tokens, 0))
    np.testing.assert_allclose(out.log_probs, np.where(kept, log_probs, 0), atol=1e-6)
    assert counting.passes == lengths.max()  # prefill gives the first token, then one pass a token


def test_finished_rows_leave_the_batch_and_equal_prompts_are_read_once(monkeypatch, variables, prompts):
    """And neither changes what is said."""
    several = jnp.arange(20) % B  # four distinct prompts
    rows, lengths = left_pad(prompts, LENGTHS)[several], LENGTHS[several]
    sampling, eos, active = Sampling(max_tokens=10, temperature=1.5), tuple(range(0, 40, 6)), jnp.arange(20) % 7 > 0
    args = variables, rows, lengths, jax.random.key(1), sampling, eos, None, active
    assert row_sizes(20) == (20, 12, 7, 4, 2)
    counting = Counting(MODEL)
    out = counting(*args)
    needed = [int((out.lengths > n).sum()) for n in range(1, int(out.lengths.max()))]
    want = [min(size for size in row_sizes(20) if size >= n) for n in needed]
    assert sorted(counting.rows, reverse=True) == want and len(set(want)) == 5
    assert counting.read == [3, 3]  # in blocks of three
    assert row_steps(out.lengths) == sum(want)
    assert row_use(out.lengths) == pytest.approx(sum(needed) / sum(want))
    monkeypatch.setattr(module, "row_sizes", lambda batch, mesh: (batch,))
    plain = Counting(MODEL)
    whole = plain(*args)
    assert plain.rows == [20] * len(needed) and plain.read == [20]
    for name in ("tokens", "lengths", "ended"):
        np.testing.assert_array_equal(getattr(out, name), getattr(whole, name))
    np.testing.assert_allclose(out.log_probs, whole.log_probs, atol=1e-5)
    assert len(np.unique(out.tokens, axis=0)) > 10


def test_what_a_row_says_does_not_depend_on_the_others(variables, prompts):
    """Nor on how many there are."""
    sampling, padded = Sampling(max_tokens=10, temperature=1.5), left_pad(prompts, LENGTHS)
    four = run(MODEL, variables, padded, LENGTHS, jax.random.key(6), sampling, (3,))
    few = run(MODEL, variables, padded[:3].at[1].set(7), LENGTHS[:3], jax.random.key(6), sampling, (3,))
    for name in ("tokens", "lengths", "ended"):
        np.testing.assert_array_equal(getattr(few, name)[::2], getattr(four, name)[:3:2])


def test_row_steps_by_hand():
    """100 rows have the sizes 100, 64, 32 and 16."""
    lengths = np.zeros((3, 100), int)
    lengths[0, :70] = 2  # one step of 100
    lengths[1, :64], lengths[1, 5], lengths[1, 6] = 3, 4, 4  # two steps of 64, one of 16
    assert row_sizes(100) == (100, 64, 32, 16)
    assert row_steps(jnp.asarray(lengths)).tolist() == [100, 144, 0]
    assert row_use(jnp.asarray(lengths)) == pytest.approx((70 + 130) / 244)
    assert row_use(jnp.ones((2, 5), int)) == 1


def test_rows_stay_where_they_are_on_several_devices(mesh):
    heads = sharding.make_mesh(1, 1, 2, jax.devices()[:2])
    assert row_sizes(16, mesh) == row_sizes(16, heads) == (16,) and len(row_sizes(16)) > 1


def test_inactive_rows_generate_nothing(variables, prompts, free):
    counting, padded = Counting(MODEL), left_pad(prompts, LENGTHS)
    active = jnp.array([True, False, True, False])
    args = (variables, padded, LENGTHS, jax.random.key(0), GREEDY, NO_EOS, None)
    out = counting(*args, active)
    np.testing.assert_array_equal(out.lengths, [10, 0, 10, 0])
    np.testing.assert_array_equal(out.tokens, np.where(active[:, None], free.tokens, 0))
    np.testing.assert_array_equal(out.log_probs[~active], 0)
    assert not out.ended.any()
    out = counting(*args, jnp.zeros(B, bool))
    assert counting.passes == 1 and not out.lengths.any() and not out.tokens.any()


def test_reply_that_ends_exactly_at_max_tokens(variables, prompts, free):
    eos = (int(free.tokens[0, 9]),)
    first = np.asarray(free.tokens[0] == eos[0]).argmax()
    sampling = Sampling(max_tokens=int(first) + 1, temperature=0.0)
    out = run(MODEL, variables, left_pad(prompts, LENGTHS), LENGTHS, jax.random.key(0), sampling, eos)
    assert out.ended[0] and out.lengths[0] == first + 1 == out.tokens.shape[1]


LOGITS = np.array([1.2, -0.3, 2.0, 0.1, -1.5, 1.9, 0.7, -4.0], np.float32)


def draws(sampling, num=40_000, logits=LOGITS):
    logits = jnp.broadcast_to(jnp.asarray(logits), (num, len(logits)))
    return np.asarray(jax.jit(sample_token, static_argnums=2)(jax.random.key(0), logits, sampling))


def expected(temperature, top_k, top_p):
    """The sampler's distribution, slowly."""
    p = np.exp(LOGITS.astype(np.float64) / temperature)
    order = sorted(range(len(p)), key=lambda i: -p[i])[: top_k or len(p)]
    total, kept, mass = sum(p[i] for i in order), [], 0.0
    for i in order:
        if mass < top_p:
            kept.append(i)
        mass += p[i] / total
    out = np.zeros_like(p)
    out[kept] = p[kept] / p[kept].sum()
    return out


@pytest.mark.parametrize(
    "temperature, top_k, top_p",
    [
        (1.0, 0, 1.0),
        (0.5, 0, 1.0),
        (3.0, 0, 1.0),
        (1.0, 3, 1.0),
        (1.5, 0, 0.7),
        (2.0, 5, 0.6),
        (1.0, 0, 1e-6),
        (1, 99, 1),
        (5.0, 1, 1.0),
    ],
)
def test_frequencies_are_those_of_softmax_and_nothing_else_is_drawn(temperature, top_k, top_p):
    got = np.bincount(draws(Sampling(1, temperature, top_k, top_p)), minlength=8)
    want = expected(temperature, top_k, top_p)
    assert got[want == 0].sum() == 0
    np.testing.assert_allclose(got / got.sum(), want, atol=5 * np.sqrt(0.25 / got.sum()))


@pytest.mark.parametrize("size", [48, 41])  # a multiple of 16, and an odd number
def test_one_random_number_for_a_vocabulary_gives_these_frequencies_too(size):
    places = np.array([0, 1, 7, 8, 20, 21, 39, size - 1])
    logits = np.full(size, -np.inf, np.float32)
    logits[places] = LOGITS / 2
    got = np.bincount(jax.jit(_draw)(jax.random.key(0), jnp.tile(logits, (40_000, 1))), minlength=size)
    assert got[places].sum() == 40_000
    np.testing.assert_allclose(got[places] / 40_000, expected(2.0, 0, 1.0), atol=5 * np.sqrt(0.25 / 40_000))
    at, rest = _place(jnp.array([[0.0, 0.5, 0.5, 0.0]]), jnp.array([[1.0]]))  # rounded up to the end
    assert int(at[0, 0]) == 2 and float(rest[0, 0]) == 0.5
    certain = jnp.full((1, LARGE), -jnp.inf).at[0, 8000].set(0.0)
    assert sample_token(jax.random.key(0), certain, Sampling(1, 2.0)).tolist() == [8000]


@pytest.mark.parametrize("size", [1000, LARGE])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_words_of_logits_in_half_precision_are_all_drawn(dtype, size):
    """As from the same logits in float32; jax.random.categorical draws the first ones far too often."""
    logits = jnp.broadcast_to(jnp.zeros(size, dtype), (4000, size))
    got = sample_token(jax.random.key(0), logits, Sampling(1, 1.0))
    assert got.tolist() == sample_token(jax.random.key(0), logits.astype(jnp.float32), Sampling(1, 1.0)).tolist()
    counts = np.histogram(got, bins=8, range=(0, size))[0]
    np.testing.assert_allclose(counts / 4000, 1 / 8, atol=5 * np.sqrt(1 / 8 * 7 / 8 / 4000))


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
    ],
)
def test_bad_sampling_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**wrong)


def test_greedy_tokens_on_eight_devices_equal_one(mesh, variables, prompts, free):
    params = sharding.shard(variables["params"], transformer.param_specs(MODEL)["params"], mesh)
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    padded, lengths = jax.device_put((left_pad(prompts, LENGTHS), LENGTHS), rows)
    model = MODEL.clone(mesh=mesh)
    out = run(model, {"params": params}, padded, lengths, jax.random.key(0), GREEDY, NO_EOS)
    assert len(params["embedding"].sharding.device_set) == 8
    np.testing.assert_array_equal(out.tokens, free.tokens)
    np.testing.assert_allclose(out.log_probs, free.log_probs, atol=1e-4)


def test_rows_leave_the_batch_on_a_mesh_of_one_device(variables, prompts):
    mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
    params = sharding.shard(variables["params"], transformer.param_specs(MODEL)["params"], mesh)
    sampling, padded = Sampling(max_tokens=10, temperature=1.5), left_pad(prompts, LENGTHS)
    args = padded, LENGTHS, jax.random.key(2), sampling, tuple(range(0, 40, 6))
    assert row_sizes(B, mesh) == row_sizes(B) == (4, 2, 1)
    out, one = run(MODEL.clone(mesh=mesh), {"params": params}, *args), run(MODEL, variables, *args)
    assert len(set(one.lengths.tolist())) > 1
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), out, one)


def test_top_k_of_one_is_greedy():
    assert set(draws(Sampling(1, 2.0, top_k=1), 500)) == {2}
    assert set(draws(Sampling(1, 0.0), 500)) == {2}
    logits = jax.random.normal(jax.random.key(3), (50, 11))
    got = sample_token(jax.random.key(4), logits, Sampling(1, 5.0, top_k=1))
    np.testing.assert_array_equal(got, np.asarray(logits).argmax(-1))


def test_rows_of_a_batch_are_drawn_independently():
    got = draws(Sampling(1, 1.0), 2_000, np.zeros(2, np.float32)).reshape(2, -1)
    assert abs(np.mean(got[0] == got[1]) - 0.5) < 0.08
