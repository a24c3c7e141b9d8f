"""Resumable generation against `generate`, which is itself tested against full forward passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.lm import decode as steps
from nlrl_jax.lm import kv_rows
from nlrl_jax.lm.cache import HeadKeyValues
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.generate import compute_prefix, generate, left_pad, prefill
from nlrl_jax.lm.score import score
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.types import Sampling
from tests.lm.noise import noisy_params

CONFIG = ModelConfig(40, 16, 24, 2, 4, 2, 8, 64, qk_norm=True)
MODEL = Transformer(CONFIG)
GREEDY = Sampling(max_tokens=9, temperature=0.0)
NO_EOS = (99,)
KEY = jax.random.key(7)
S = 7
LENGTHS = np.array([7, 1, 4, 3, 6], np.int32)

run = jax.jit(generate, static_argnums=(0, 5, 6))
read = jax.jit(prefill, static_argnums=0)
admit = jax.jit(kv_rows.admit)
decode = jax.jit(steps.decode, static_argnums=(0, 5))
read_more = jax.jit(kv_rows.read, static_argnums=0)
score_of = jax.jit(score, static_argnums=0)
next_log_probs = jax.jit(kv_rows.next_log_probs, static_argnums=0)


@pytest.fixture(scope="module")
def variables():
    return noisy_params(CONFIG, 1.0)


@pytest.fixture(scope="module")
def prompts():
    """Left-padded int32 [5, S]."""
    tokens = jax.random.randint(jax.random.key(5), (5, S), 0, 40)
    return left_pad(jnp.where(jnp.arange(S) < LENGTHS[:, None], tokens, 0), jnp.asarray(LENGTHS))


@pytest.fixture(scope="module")
def free(variables, prompts):
    """Greedy replies that nothing ends, by `generate`."""
    return np.asarray(run(MODEL, variables, prompts, LENGTHS, KEY, GREEDY, NO_EOS).tokens)


def heads_first(kv):
    """[layers, B, S, K, D] to [layers, K, B, S, D]."""
    return HeadKeyValues(*(jnp.moveaxis(t, 3, 1) for t in kv[:2]))


class Desk:
    """Two rows, and what the host does with them."""

    def __init__(self, variables, prompts, sampling, eos, slots, prefix=None, num=2):
        self.variables, self.sampling, self.eos, self.prefix = variables, sampling, eos, prefix
        kv, self.hidden = read(MODEL, variables, prompts, LENGTHS, prefix)
        self.kv, self.last = heads_first(kv), prompts[:, -1]
        self.rows = steps.empty_rows(MODEL, num, slots, sampling.max_tokens)

    def admit(self, source, index, draw=None):
        source = np.array(source, np.int32)
        draw = source if draw is None else np.array(draw, np.int32)
        new = kv_rows.FreshRows(source, LENGTHS[source], self.last[source], draw)
        self.rows = admit(self.rows, self.kv, new, np.int32(self.sampling.max_tokens), np.int32(index))

    def decode(self, stop_at):
        args = (self.rows, KEY, np.int32(stop_at), self.sampling, np.isin(np.arange(40), self.eos), self.prefix)
        self.rows = decode(MODEL, self.variables, *args)

    def reply(self, row):
        return self.rows.tokens[row, : self.rows.lengths[row]].tolist()


def test_one_batch_to_its_end_equals_generate(variables, prompts, free):
    desk = Desk(variables, prompts, GREEDY, NO_EOS, S + 9, num=5)
    desk.admit(range(5), S)
    desk.decode(5)
    np.testing.assert_array_equal(desk.rows.tokens, free)
    assert not steps.running(desk.rows).any() and not desk.rows.ended.any()


@pytest.mark.parametrize("index", [S + 3, S + 4])  # the cache moves, or stays as it is
def test_a_row_that_comes_in_late_and_the_rows_that_go_on_say_what_they_say_alone(variables, prompts, free, index):
    eos = (int(free[1, 3]),)
    until = [list(row[: list(row).index(eos[0]) + 1]) if eos[0] in row else list(row) for row in free]
    assert len(until[1]) == 4 and len(until[0]) > 4 < len(until[4])
    desk = Desk(variables, prompts, GREEDY, eos, S + 9 + 4)
    desk.admit([0, 1], S)
    desk.decode(1)
    assert desk.reply(1) == until[1] and desk.rows.ended.tolist() == [False, True]
    desk.admit([-1, 4], index)  # prompt 0 and the three tokens after it need S + 3 slots
    desk.decode(1)
    desk.decode(2)
    assert desk.reply(0) == until[0] and desk.reply(1) == until[4]


def test_the_cache_moves_down_when_its_slots_are_used_up(variables, prompts, free):
    desk = Desk(variables, prompts, GREEDY, NO_EOS, S + 9)
    desk.admit([0, -1], S + 6)
    desk.decode(2)
    assert int(desk.rows.index) == S + 9 and desk.rows.lengths.tolist() == [3, 0]
    desk.admit([-1, 2], S + 3)
    desk.decode(2)
    desk.admit([-1, -1], S + 5)  # prompt 2 has six tokens and is not done yet
    desk.decode(2)
    assert desk.reply(0) == free[0].tolist() and desk.reply(1) == free[2].tolist()


def test_a_shared_prefix_equals_a_prefix_in_every_prompt(variables, prompts):
    front = jnp.array([3, 1, 4, 1, 5])
    pasted = left_pad(
        jnp.concatenate([jnp.tile(front, (5, 1)), left_pad(prompts[:, ::-1], LENGTHS)[:, ::-1]], axis=1),
        jnp.asarray(LENGTHS + 5),
    )
    desk = Desk(variables, prompts, GREEDY, NO_EOS, S + 9, compute_prefix(MODEL, variables, front), num=5)
    desk.admit(range(5), S)
    desk.decode(5)
    want = run(MODEL, variables, pasted, LENGTHS + 5, KEY, GREEDY, NO_EOS)
    np.testing.assert_array_equal(desk.rows.tokens, want.tokens)


def test_a_draw_belongs_to_its_number_and_not_to_its_row(variables, prompts):
    sampling = Sampling(max_tokens=9, temperature=2.0, top_k=20, top_p=0.95)
    replies = {}
    for source, draw in (([0, 0], [3, 8]), ([0, 0], [8, 3])):
        desk = Desk(variables, prompts, sampling, NO_EOS, S + 9)
        desk.admit(source, S, draw)
        desk.decode(2)
        replies[tuple(draw)] = [desk.reply(0), desk.reply(1)]
    assert replies[3, 8] == replies[8, 3][::-1]
    assert replies[3, 8][0] != replies[3, 8][1]


def test_sampled_tokens_have_the_model_s_frequencies(variables, prompts):
    sampling = Sampling(max_tokens=1, temperature=3.0)
    desk = Desk(variables, prompts, sampling, NO_EOS, S + 1, num=20_000)
    desk.admit(np.zeros(20_000), S, np.arange(20_000))
    desk.decode(20_000)
    got = np.bincount(np.asarray(desk.rows.tokens[:, 0]), minlength=40) / 20_000
    logits = np.asarray(MODEL.apply(variables, desk.hidden[0], method="unembed"), np.float64) / 3.0
    want = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    np.testing.assert_allclose(got, want, atol=5 * np.sqrt(0.25 / 20_000))


def test_texts_that_are_read_in_chunks_and_kept_in_a_pool_are_those_of_one_pass(variables, prompts):
    """Texts 0 and 4, of seven and six tokens: two tokens of each are known, the others are read in two chunks."""
    whole = heads_first(read(MODEL, variables, prompts, LENGTHS, None)[0])
    texts, start, tokens = np.array([0, 4]), (S - LENGTHS)[[0, 4]], np.asarray(prompts)[[0, 4]]
    # Slots 2 and 3 hold text 0's first two tokens, slots 5 and 6 text 4's; slot 99 is nowhere.
    source, into = np.array([0, 1, 4 * S + 1, 4 * S + 2, 3]), np.array([2, 3, 5, 6, 99])
    pool = kv_rows.store(kv_rows.empty_pool(MODEL, 8), whole, source, into)
    slots = np.full((2, S), -1)
    slots[0, :2], slots[1, 1:3] = (2, 3), (5, 6)
    rows, hidden = kv_rows.load(pool, slots), []
    for at, size in ((2, 3), (5, 2)):
        states, rows = read_more(MODEL, variables, rows, tokens[:, at : at + size], np.int32(at), start)
        hidden.append(states)
    for row, text in enumerate(texts):
        np.testing.assert_allclose(rows.k[:, :, row, start[row] :], whole.k[:, :, text, start[row] :], atol=1e-4)
        np.testing.assert_allclose(rows.v[:, :, row, start[row] :], whole.v[:, :, text, start[row] :], atol=1e-4)
    targets = np.array([5, 6, 7])
    got = next_log_probs(MODEL, variables, hidden[1], np.array([3, 1]), np.array([0, 1, 0]), targets)
    # Token 3 of the last chunk is text 4's last one, token 1 text 0's.
    replies = jnp.array([[5], [6], [7]])
    want = score_of(MODEL, variables, prompts[np.array([4, 0, 4])], LENGTHS[[4, 0, 4]], replies)
    np.testing.assert_allclose(got, want[:, 0], atol=1e-4)
