"""SFT: hand-worked loss, what is masked, what learns."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nlrl_jax.algorithms.sft import (
    Example,
    SFTBatch,
    SFTConfig,
    fit,
    make_batches,
    make_sft_step,
    rate_at,
    sft_loss,
    tokenize,
)
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.transformer import Transformer, init_lora, init_params
from nlrl_jax.types import Chat, Piece
from nlrl_jax.updates import masters
from nlrl_jax.weights.load import load_tokenizer
from tests.small_sentencepiece import FORMS
from tests.small_sentencepiece import small as small_sentencepiece

V, END = 20, 19
MODEL = Transformer(ModelConfig(V, 16, 24, 1, 2, 1, 8, 32, lora=LoraConfig(4, 8.0)))
# prompt 3 1 4, reply 5 9 END; prompt 2, reply 7 END, then padding
TOKENS = jnp.array([[3, 1, 4, 5, 9, END], [2, 7, END, 0, 0, 0]])
LENGTHS = jnp.array([6, 3])
MASK = jnp.array([[0, 0, 0, 1, 1, 1], [0, 1, 1, 0, 0, 0]])


def batch(tokens, lengths, mask):
    """One example a row, right-padded."""
    tokens = jnp.asarray(tokens)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return SFTBatch(tokens, positions, (positions < jnp.asarray(lengths)[:, None]).astype(jnp.int32), mask)


@pytest.fixture(scope="module")
def variables():
    params = init_params(MODEL, jax.random.key(0))
    params["lm_head"] *= 10  # so that an adapter, which does not reach the head, can be heard
    return {"params": params, "lora": init_lora(MODEL, jax.random.key(1))}


class Table:
    """Stands in for a model: the logits of what follows a token are given, whatever came before it."""

    config, mesh = MODEL.config, None

    def apply(self, logits, x, *args, method=None, **kwargs):
        return x if method else (logits[x], None)


def test_hand_worked_loss():
    # After a 3, token 1 has probability 3/4 and token 0 has 1/4; after a 1 all three are equally likely.
    logits = jnp.log(jnp.array([[1, 1, 1], [1, 1, 1], [1, 1, 2], [1, 3, 1e-30]], jnp.float32))
    tokens, lengths = jnp.array([[3, 1, 2], [3, 0, 0]]), jnp.array([3, 2])
    both = jnp.array([[0, 1, 1], [0, 1, 0]])
    loss, metrics = sft_loss(Table(), logits, batch(tokens, lengths, both))
    want = -(np.log(3 / 4) + np.log(1 / 3) + np.log(1 / 4)) / 3
    np.testing.assert_allclose(loss, want, rtol=1e-6)
    np.testing.assert_allclose(metrics["perplexity"], np.exp(want), rtol=1e-6)
    assert metrics["tokens"] == 3
    loss, metrics = sft_loss(Table(), logits, batch(tokens, lengths, both.at[0, 1].set(0)))  # the 1 is prompt now
    np.testing.assert_allclose(loss, -(np.log(1 / 3) + np.log(1 / 4)) / 2, rtol=1e-6)
    # Padding and the first column never count, whatever the mask says.
    loss, metrics = sft_loss(Table(), logits, batch(tokens, lengths, jnp.ones((2, 3))))
    assert metrics["tokens"] == 3
    np.testing.assert_allclose(loss, want, rtol=1e-6)


@pytest.mark.parametrize("train", ["lora", "params"])
def test_only_what_trains_changes_and_the_loss_falls(variables, train):
    optimizer = optax.adam(0.03)
    if train == "params":
        variables = {"params": variables["params"]}  # needs no adapter
    step = jax.jit(make_sft_step(functools.partial(sft_loss, MODEL), optimizer, train))
    now, opt_state, found = variables, optimizer.init(variables[train]), []
    for _ in range(40):
        now, opt_state, metrics = step(now, opt_state, batch(TOKENS, LENGTHS, MASK))
        found.append(float(metrics["loss"]))
    assert abs(found[0] - np.log(V)) < 1  # knows nothing
    assert found[-1] < 0.3 * found[0]
    assert set(now) == set(variables)
    if train == "lora":
        jax.tree.map(np.testing.assert_array_equal, now["params"], variables["params"])
    assert step._cache_size() == 1
    assert metrics["grad_norm"] > 0 and metrics["tokens"] == 5


EXAMPLES = [
    Example([3, 1, 4, 5, 9, END], 3),
    Example([2, 7, END], 1),
    Example([8, 8, 6, END], 2),
    Example([1, 2, END], 1),
]


def test_packed_rows_have_the_loss_and_gradient_of_padded_ones(variables):
    def of(packed):
        config = SFTConfig(batch_size=4, max_length=12, packed=packed)
        (rows,) = make_batches(EXAMPLES, config, np.arange(4))
        loss = lambda params: sft_loss(MODEL, {"params": params}, rows)
        return rows, jax.value_and_grad(loss, has_aux=True)(variables["params"])

    padded, ((loss, metrics), grads) = of(False)
    packed, ((packed_loss, packed_metrics), packed_grads) = of(True)
    assert (packed.segments.max(axis=1) == [3, 1, 0, 0]).all()  # 6 + 3 + 3 fill a row of 12; 4 begin another
    assert (padded.segments.max(axis=1) == 1).all()
    assert metrics["tokens"] == packed_metrics["tokens"] == 3 + 2 + 2 + 2
    np.testing.assert_allclose(packed_loss, loss, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), packed_grads, grads)


def test_a_template_is_tokenised_once_and_the_end_is_learned_even_where_it_pads():
    tokenizer = load_tokenizer("nano")
    (example,) = tokenize(tokenizer, [(Chat.of("2 + 2?"), "4")])
    text = tokenizer.render_chat([{"role": "user", "content": "2 + 2?"}])
    assert tokenizer.decode(example.tokens[: example.start], skip_special_tokens=False) == text
    assert tokenizer.decode(example.tokens[example.start :], skip_special_tokens=False) == "4<|im_end|>"
    pads_with_end = [t._replace(tokens=[t.tokens[0], END, *t.tokens[1:]], start=t.start + 1) for t in EXAMPLES]
    (rows,) = make_batches(pads_with_end, SFTConfig(batch_size=4), np.arange(4))
    rows.tokens[rows.segments == 0] = END
    learned = rows.weights.astype(bool)
    assert (rows.tokens[learned] == END).sum() == 4  # each row's own end, not an END of its prompt or its padding
    assert learned.sum() == 9


def test_what_continues_an_open_message_has_no_end_token():
    tokenizer = load_tokenizer("nano")
    chat = Chat.of("goal", continued="Action:")
    (example,) = tokenize(tokenizer, [(chat, " up\nObservation:")])
    assert tokenizer.decode(example.tokens[: example.start], False) == tokenizer.render_chat(chat.messages)
    assert tokenizer.decode(example.tokens[example.start :], False) == " up\nObservation:"
    (ended,) = tokenize(tokenizer, [(chat, [Piece(" up\nObservation:"), Piece(None)])])
    assert ended.tokens == [*example.tokens, tokenizer.eos_ids[0]]


def test_pieces_are_tokenised_apart_and_weighted():
    tokenizer = load_tokenizer("nano")
    pieces = [Piece("go"), Piece("al \n", 0), Piece(" up", -0.5), Piece(None, 2)]
    (example,) = tokenize(tokenizer, [(Chat.of("x"), pieces)])
    ids = [tokenizer.encode(piece.text) for piece in pieces[:3]] + [[tokenizer.eos_ids[0]]]
    assert example.tokens[example.start :] == sum(ids, [])
    assert example.weights == [1.0] * len(ids[0]) + [0] * len(ids[1]) + [-0.5] * len(ids[2]) + [2]
    (as_text,) = tokenize(tokenizer, [(Chat.of("x"), "goal up")])
    assert as_text == tokenize(tokenizer, [(Chat.of("x"), [Piece("goal up"), Piece(None)])])[0]


@pytest.mark.parametrize("form", FORMS)
def test_pieces_continue_the_prompt_without_another_space_before_them(form):
    tokenizer = small_sentencepiece(form)
    pieces = [Piece(" Up\n"), Piece("Observation: wall\n"), Piece("Action:"), Piece(" Left")]
    text = "".join(piece.text for piece in pieces)
    # The second prompt ends in a control token, behind which some tokenizers put a space.
    ends_in_control = dataclasses.replace(tokenizer, chat_template="{{ messages[0].content }}</s>")
    for reader, chat in ((tokenizer, Chat.of("Go.", continued="Action:")), (ends_in_control, Chat.of("Go."))):
        (example,) = tokenize(reader, [(chat, pieces)])
        assert example.tokens == reader.encode(reader.render_chat(chat.messages) + text)


@pytest.mark.parametrize("packed", [False, True])
def test_a_transcript_in_pieces_has_the_gradient_of_its_weighted_parts(variables, packed):
    whole = Example([3, 1, 4, 5, 9, 2], 2, [1, 0, -0.5, 2])
    rows = lambda example: make_batches([EXAMPLES[3], example], SFTConfig(max_length=12, packed=packed), np.arange(2))
    one = lambda at: whole._replace(weights=[float(i == at) for i in range(4)])
    loss = jax.jit(jax.value_and_grad(lambda p, rows: sft_loss(MODEL, {"params": p}, rows)[0]))
    alone, _ = loss(variables["params"], rows(whole._replace(weights=[0] * 4))[0])  # of the 2 tokens of the other
    found, grads = loss(variables["params"], rows(whole)[0])
    parts = [loss(variables["params"], rows(one(at))[0]) for at in (0, 2, 3)]  # each with the other's 2 tokens
    weigh = lambda a, b, c, other: (3 * (a - 0.5 * b + 2 * c) - 1.5 * 2 * other) / 5
    np.testing.assert_allclose(found, weigh(*(part for part, _ in parts), alone), rtol=1e-5)
    _, other = loss(variables["params"], rows(whole._replace(weights=[0] * 4))[0])
    expected = jax.tree.map(weigh, *(grad for _, grad in parts), other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), grads, expected)


def test_fit_learns_counts_what_is_too_long_and_repeats_itself(variables):
    long = Example(list(range(15)) * 3, 2)
    config = SFTConfig(learning_rate=0.03, epochs=30, batch_size=2, max_length=12, schedule="cosine", warmup=0.1)
    base = {"params": variables["params"]}
    found, metrics = fit(MODEL, base, [*EXAMPLES, long], config)
    assert (metrics["examples"], metrics["too_long"], metrics["steps"], metrics["tokens"]) == (4, 1, 60, 9)
    assert metrics["loss"] < 0.5 * metrics["first_loss"]
    again, _ = fit(MODEL, base, [*EXAMPLES, long], config)
    jax.tree.map(np.testing.assert_array_equal, again, found)
    with pytest.raises(ValueError, match="all of 1 examples are longer than max_length = 12 tokens"):
        fit(MODEL, base, [long], config)
    with pytest.raises(ValueError, match="there is no example to learn from"):
        fit(MODEL, base, [], config)
    with pytest.raises(ValueError, match="no token of 1 examples is to be learned"):
        fit(MODEL, base, [EXAMPLES[0]._replace(weights=[0, 0, 0])], config)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (Example([3, V, 4], 1), f"example 1 has ids from 3 to {V}; the model has {V}"),
        (Example([3, -1, 4], 1), "example 1 has ids from -1 to 4"),
        (Example([3, 4], 0), "example 1 has 2 tokens and start 0"),
        (Example([3, 4], 2), "example 1 has 2 tokens and start 2"),
        (Example([3, 4, 5], 1, [1.0]), "example 1 has 1 weights for the 2 tokens of its reply"),
        (EXAMPLES[0], "train is 'lora', but the variables have only params"),
    ],
)
def test_examples_that_do_not_fit_are_refused(variables, example, message):
    with pytest.raises(ValueError, match=message):
        fit(MODEL, {"params": variables["params"]}, [EXAMPLES[0], example], SFTConfig(train="lora"))


def test_without_an_end_token_there_is_no_example():
    tokenizer = dataclasses.replace(load_tokenizer("nano"), eos_token=None, eos_ids=())
    with pytest.raises(ValueError, match="the tokenizer names no end-of-sequence token"):
        tokenize(tokenizer, [(Chat.of("a"), "b")])


def test_weights_of_16_bits_learn_as_float32(variables):
    short = lambda dtype: {"params": jax.tree.map(lambda x: x.astype(dtype), variables["params"])}
    half = short(jnp.bfloat16)
    config = SFTConfig(learning_rate=1e-5, epochs=1, batch_size=2, max_length=12)
    found, _ = fit(MODEL, half, EXAMPLES, config)
    want, _ = fit(MODEL, {"params": masters(half["params"])}, EXAMPLES, config)
    jax.tree.map(np.testing.assert_array_equal, found, want)
    moved = jax.tree.map(lambda new, old: new.dtype == jnp.float32 and bool((new != old).any()), found, half)
    assert all(jax.tree.leaves(moved))
    step = make_sft_step(functools.partial(sft_loss, MODEL), optax.sgd(1.0), "params")
    for dtype in ("bfloat16", "float16"):
        with pytest.raises(ValueError, match=f"that learn are {dtype}, in which small steps round to nothing"):
            step(short(dtype), None, batch(TOKENS, LENGTHS, MASK))


def test_the_learning_rate_rises_then_stays_or_falls():
    rate = lambda schedule: [
        rate_at(SFTConfig(learning_rate=1.0, schedule=schedule, warmup=0.2), i, 10) for i in range(10)
    ]
    np.testing.assert_allclose(rate("constant"), [0.5] + [1] * 9)
    np.testing.assert_allclose(rate("cosine"), [0.5, 1] + [0.5 * (1 + np.cos(np.pi * i / 8)) for i in range(8)])


def test_another_collection_is_refused():
    with pytest.raises(ValueError, match="train is 'all'; choose one of lora, params"):
        make_sft_step(functools.partial(sft_loss, MODEL), optax.sgd(1.0), "all")
