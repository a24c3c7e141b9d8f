"""The compiled reply parser equals the plain Python specification, and that says what the paper says."""

import copy
import functools
import random

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.text.automata import NUM_BYTES, word_automaton
from nlrl_jax.text.parser import ParsedReply, ReplyFormat, compile_parser, reference_parse
from tests.tokenizers_from_wheels import small_tokenizer

FORMAT = ReplyFormat(actions=("Up", "Down", "Left", "Right", "go", "go north"), max_actions=3)
LENGTH = 256
GOOD = "<observe>o</observe>\n<think>t</think>\n<plan>p</plan>\n<action>Up || Left</action>"


@functools.cache
def parser(reply_format=FORMAT):
    return jax.jit(jax.vmap(compile_parser(reply_format, small_tokenizer())))


def text_of(ids):
    flat, offsets = small_tokenizer().token_bytes
    return b"".join(flat[offsets[i] : offsets[i + 1]].tobytes() for i in ids)


def assert_equal_reference(replies, reply_format=FORMAT):
    """`replies` are lists of ids; what the buffer holds after a reply must not be read."""
    tokens = np.random.default_rng(0).integers(0, small_tokenizer().vocab_size, (len(replies), LENGTH)).astype(np.int32)
    for row, ids in zip(tokens, replies, strict=True):
        row[: len(ids)] = ids
    lengths = np.array([len(ids) for ids in replies], np.int32)
    parsed = jax.device_get(parser(reply_format)(tokens, lengths))
    assert [np.asarray(x).dtype for x in parsed] == [np.int32] * 4 + [np.bool_, np.float32]
    for i, ids in enumerate(replies):
        want = reference_parse(text_of(ids), len(ids), reply_format)
        for name, got, expected in zip(ParsedReply._fields, parsed, want, strict=True):
            np.testing.assert_allclose(got[i], expected, rtol=1e-6, err_msg=f"{name} of {text_of(ids)!r}")


def reply(text, tokenizer_noise=None):
    """Ids of a text; with noise, cut at random into pieces that are encoded apart, and ended."""
    tokenizer = small_tokenizer()
    if tokenizer_noise is None:
        return tokenizer.encode(text)[:LENGTH]
    ids, start = [], 0
    while start < len(text):
        end = start + tokenizer_noise.randint(1, 12)
        ids += tokenizer.encode(text[start:end])
        start = end
    if tokenizer_noise.random() < 0.7:
        ids.append(tokenizer.eos_ids[0])
    return ids[:LENGTH]


# text -> (actions, num_actions, num_invalid, structure_violations, extra_text)
CASES = {
    GOOD: ([0, 2, -1], 2, 0, 0, False),
    "": ([-1, -1, -1], 0, 1, 8, False),
    "Up": ([-1, -1, -1], 0, 1, 8, False),
    "<action>Up</action>": ([0, -1, -1], 1, 0, 6, False),
    "<action>Up</action> \n\t": ([0, -1, -1], 1, 0, 6, False),
    "<action>Up</action> Done.": ([0, -1, -1], 1, 0, 6, True),
    "<action>Up": ([-1, -1, -1], 0, 1, 7, False),
    "<action>Up</action": ([-1, -1, -1], 0, 1, 7, False),
    "Up</action>": ([-1, -1, -1], 0, 1, 8, False),  # 7 are missing, 1 closes nothing
    "</action><action>Up": ([-1, -1, -1], 0, 1, 7, True),
    "</action><action>Up</action>": ([0, -1, -1], 1, 0, 8, False),
    "<action></action>": ([-1, -1, -1], 0, 1, 6, False),
    "<action> go north||go||go  north</action>": ([5, 4, -1], 2, 1, 6, False),
    "<action>Up||||Left</action>": ([0, -1, 2], 2, 1, 6, False),
    "<action>Up|||Left</action>": ([0, -1, -1], 1, 1, 6, False),
    "<action>up || Jump || Left</action>": ([-1, -1, 2], 1, 2, 6, False),
    "<action>Up||Up||Up||Up||Nope</action>": ([0, 0, 0], 3, 1, 6, False),
    "<action>Up</action><action>Down</action>": ([0, -1, -1], 1, 0, 8, False),
    "<action>Up <action>Down</action>": ([-1, -1, -1], 0, 1, 7, False),
    # <think> is misnested, </action> closes nothing, 4 are missing:
    "<action><think>Up</think></action>": ([-1, -1, -1], 0, 1, 6, False),
    "<<action>Up<</action>": ([-1, -1, -1], 0, 1, 6, False),
    "<act><action>Up</action></action2>": ([0, -1, -1], 1, 0, 8, True),
    "< action>Up</ action>": ([-1, -1, -1], 0, 1, 8, False),
    "<observe><think></observe></think>" + GOOD: ([0, 2, -1], 2, 0, 6, False),
    "<observe>o<think>t</think><plan>p</plan><action>Up</action>": ([0, -1, -1], 1, 0, 2, False),
    "<action>Up\u00e9</action>\u65e5": ([-1, -1, -1], 0, 1, 6, True),
}


@pytest.mark.parametrize("text", CASES)
def test_specification(text):
    actions, num_actions, num_invalid, violations, extra = CASES[text]
    parsed = reference_parse(text.encode(), 10, FORMAT)
    assert parsed.actions.tolist() == actions
    assert (parsed.num_actions, parsed.num_invalid) == (num_actions, num_invalid)
    assert (parsed.structure_violations, parsed.extra_text) == (violations, extra)
    assert parsed.format_penalty == -0.5 * (violations + extra)


def test_compiled_equals_the_specification_on_these_cases():
    assert_equal_reference([reply(text) for text in CASES])


LENGTHS = [(0, 0), (180, 0), (190, -0.25), (199, -0.475), (200, -0.5), (256, -0.5)]


@pytest.mark.parametrize(("num_tokens", "penalty"), LENGTHS)
def test_length_penalty(num_tokens, penalty):
    assert reference_parse(GOOD.encode(), num_tokens, FORMAT).format_penalty == pytest.approx(penalty)
    ids = reply(GOOD)
    space = small_tokenizer().encode(" ")[0]
    tokens = np.array([(ids + [space] * LENGTH)[:LENGTH]])
    if num_tokens >= len(ids):
        assert parser()(tokens, np.array([num_tokens])).format_penalty[0] == pytest.approx(penalty)


FRAGMENTS = [f"<{slash}{name}>" for name in FORMAT.tags for slash in ("", "/")] * 2 + [*FORMAT.actions, "go  north"]
FRAGMENTS += [" ", "\n", "||", "||", "|"]
FRAGMENTS += ["<", "</", ">", "/", "<b>", "<b1_>", "<1>", "é", "日", "<actio", "n>", "action", "x" * 40]


def test_random_replies_equal_the_reference():
    rng = random.Random(0)
    replies = []
    for _ in range(3000):
        if rng.random() < 0.5:
            text = "".join(rng.choice(FRAGMENTS) for _ in range(rng.randint(0, 30)))
        else:  # a good reply with a few things cut out, put in, or both
            text = GOOD
            for _ in range(rng.randint(0, 4)):
                at = rng.randrange(len(text) + 1)
                text = text[:at] + rng.choice(["", rng.choice(FRAGMENTS)]) + text[at + rng.randint(0, 9) :]
        replies.append(reply(text, rng))
    size = small_tokenizer().vocab_size
    replies += [[rng.randrange(size) for _ in range(rng.randint(0, LENGTH))] for _ in range(200)]
    assert_equal_reference(replies)


@pytest.mark.parametrize("separator", [",", "|", "abab", "<>"])
def test_other_formats(separator):
    reply_format = ReplyFormat(
        tags=("a", "ab", "abc_1"), actions=("ba", "aba<", "x y", "x"), separator=separator, max_actions=2, penalty=0.25,
        length_penalty_start=3, length_penalty_end=9,
    )  # fmt: skip
    rng = random.Random(1)
    pieces = ["<a>", "</a>", "<ab>", "</ab>", "<abc_1>", "</abc_1>", "<abc>", "ba", "aba<", "x y", "x", " ", separator]
    pieces += [separator[:1], "a", "b"]
    texts = ["".join(rng.choice(pieces) for _ in range(rng.randint(0, 12))) for _ in range(400)]
    replies = [f"<abc_1>{text}</abc_1>" for text in texts]
    assert_equal_reference([reply(text) for text in replies], reply_format)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tags": ()}, "tags must be"),
        ({"tags": ("a", "a")}, "tags must be"),
        ({"tags": ("a b",)}, "tag 'a b'"),
        ({"separator": " || "}, "without white space"),
        ({"separator": ""}, "without white space"),
        ({"actions": ()}, "actions must be"),
        ({"actions": ("Up", "Up")}, "actions must be"),
        ({"actions": ("Up ",)}, "action 'Up '"),
        ({"actions": ("a||b",)}, "holds"),
        ({"max_actions": 0}, "max_actions is 0"),
        ({"length_penalty_start": 200}, "must start before it ends"),
        ({"penalty": -0.5}, "penalty is -0.5"),
    ],
)
def test_bad_formats_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ReplyFormat(**({"actions": ("Up", "Down")} | change))


def normalizing(*steps):
    backend = copy.deepcopy(small_tokenizer().backend)
    backend.normalizer = normalizers.Sequence(list(steps))
    return Tokenizer.create(backend, eos_token="<|im_end|>")


NFD = (
    "e\u0301te\u0301",
    "ﬁn",
    "STRASSE",
    "\uac00\u0301",
    "Å",
)  # decomposed, a ligature, capitals, a Hangul with an accent
NORMALIZERS = {
    "none": (),
    "NFC": (normalizers.NFC(),),
    "NFKC and lower case": (normalizers.NFKC(), normalizers.Lowercase()),
    "without accents": (normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()),
    "a blank in front": (normalizers.Prepend(" "),),
}


@pytest.mark.parametrize("name", NORMALIZERS)
def test_a_word_that_the_normalizer_changes_is_valid(name):
    """The word as it is given, and as the tokenizer writes it; another word is neither."""
    tokenizer = normalizing(*NORMALIZERS[name])
    reply_format = ReplyFormat(actions=NFD, tags=("action",)).for_tokenizer(tokenizer)
    automaton = word_automaton(reply_format.words, "||")

    def event(word):
        state = 0
        for byte in word:
            state = automaton.next_state[state * (NUM_BYTES + 1) + byte]
        return automaton.final[state]

    for a, word in enumerate(NFD):
        for text in (word.encode(), tokenizer.spelled(f"<action>{word}").split(b">")[1]):
            assert event(text) == a + 2
            parsed = reference_parse(b"<action>" + text + b"||other</action>", 9, reply_format)
            assert (parsed.actions.tolist(), parsed.num_invalid) == ([a, -1, -1], 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": ("Up", "up")}, "reads the action 'up' as it does 'Up'|reads the action 'Up' as it does 'up'"),
        ({"actions": ("up", "\u00ad")}, "as nothing; give another word"),
        ({"actions": ("up",), "tags": ("Action",)}, "reads '<Action>' as '<action>'; give that"),
        ({"actions": ("up",), "separator": "ÄÄ"}, "reads 'ÄÄ' as 'ää'; give that"),
    ],
)
def test_words_that_the_normalizer_confuses_are_refused(change, message):
    tokenizer = normalizing(normalizers.Lowercase(), normalizers.Replace("\u00ad", ""))
    with pytest.raises(ValueError, match=message):
        compile_parser(ReplyFormat(**({"tags": ("action",)} | change)), tokenizer)


TEXTS = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=3)), max_size=25)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(TEXTS, min_size=8, max_size=8))
def test_any_text_equals_the_reference(texts):
    assert_equal_reference([reply("".join(fragments)) for fragments in texts])
