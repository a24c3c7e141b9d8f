"""Where texts may be encoded in parts: SentencePiece's tokenizers in all their forms, and what is refused."""

import random

import pytest
import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from nlrl_jax.lm.thoughts import answer
from nlrl_jax.lm.tokenizer import Tokenizer
from tests.small_sentencepiece import FORMS, small

every_form = pytest.mark.parametrize("form", FORMS)
STRINGS = [
    "(",
    ")",
    ", ",
    "3",
    "0",
    "\n",
    "\n\n",
    " ",
    "  ",
    "_",
    "P",
    "Goal: ",
    "Holes:",
    "<end_of_turn>",
    "</s>",
    "é",
]
STRINGS += ["日本", "<", "/action>", "Up", " ||", "|", "</", ">", "[Game State]", "\u2581", "🜁", "one"]


def in_parts(tokenizer, text: str) -> list[int]:
    borders = sorted(tokenizer.borders(text))
    parts = [text[start:end] for start, end in zip(borders, borders[1:])]
    return [i for n, part in enumerate(parts) for i in tokenizer.encode(part, continues=n > 0)]


@every_form
@pytest.mark.parametrize("bytes_of_unknown", [True, False])
def test_parts_have_the_ids_of_the_whole(form, bytes_of_unknown):
    tokenizer, rng = small(form, bytes_of_unknown), random.Random(0)
    assert not tokenizer.border_problem
    for _ in range(300):
        text = "".join(rng.choice(STRINGS) for _ in range(rng.randint(1, 12)))
        assert in_parts(tokenizer, text) == tokenizer.encode(text), text
        # What is safe in a text that is cut short is safe however it goes on.
        end = rng.randrange(len(text) + 1)
        assert tokenizer.borders(text[:end], is_cut_short=True) - {end} <= tokenizer.borders(text), (text, end)


def test_positions_that_a_token_spans_are_left_out():
    tokenizer = small("gemma")
    assert tokenizer.borders("(3, 0)\nHoles") == {0, 1, 2, 3, 4, 5, 6, 7, 12}
    assert tokenizer.borders("> (") == {0, 2, 3} and tokenizer.borders("> </") == {0, 4}
    assert tokenizer.borders("(<obs") == {0, 1, 2, 5}
    assert tokenizer.borders("(<obs", is_cut_short=True) == {0, 1, 5}  # "<observe" is a token
    assert tokenizer.spanning_token("> </a", 2) == ">\u2581</" and tokenizer.spanning_token("> (a", 2) is None
    assert tokenizer.borders("<end_of_turn>") == {0, 13}


@pytest.mark.parametrize(("form", "is_safe"), [("legacy", False), ("always", False), ("first", True), ("gemma", True)])
def test_no_part_begins_behind_an_added_token_where_a_space_is_put(form, is_safe):
    assert (4 in small(form).borders("</s>\nUp")) == is_safe


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reply", [" up", "up", "  up", "\n up", ""])
def test_a_reply_that_continues_a_text_is_decoded_with_its_space(form, reply):
    tokenizer = small(form)
    ids = tokenizer.encode(reply, continues=True)
    assert tokenizer.decode(ids, continues=True) == answer(tokenizer, ids, "", continues=True) == reply
    assert tokenizer.decode(tokenizer.encode("Action:") + ids) == f"Action:{reply}"


@pytest.mark.parametrize("form", ["legacy", "first", "always", "words"])
def test_a_text_that_continues_another_has_no_space_put_before_it(form):
    tokenizer = small(form)

    def written(text, continues):
        return [tokenizer.backend.id_to_token(i) for i in tokenizer.encode(text, continues)]

    assert written("Holes", False)[0] == "\u2581" and written("Holes", True) == ["Holes"]
    assert written(" turn", True) == ["\u2581turn"] and written("", True) == []
    marked = tokenizer.as_content("Holes</s>")
    assert tokenizer.encode(marked, True) == tokenizer.encode(f"(0){marked}")[len(tokenizer.encode("(0)")) :]


def test_words_that_are_in_the_vocabulary_as_wholes_are_encoded_as_before():
    backend = tokenizers.Tokenizer(models.WordLevel({"\u2581a": 0, "<unk>": 1}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", "always")
    tokenizer = Tokenizer.create(backend)
    assert not tokenizer.adds_space and tokenizer.encode("a", continues=True) == [0]


def bpe(normalizer=None, pre_tokenizer=None, added=(), tokens=("ab",), merges=(("a", "b"),), **options):
    vocabulary = {token: i for i, token in enumerate(["<unk>", "a", "b", "c", "\u2581", "<0xC3>", "<0xA9>", *tokens])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, list(merges), **{"unk_token": "<unk>", **options}))
    backend.normalizer, pre = normalizer, pre_tokenizer
    if pre is not None:
        backend.pre_tokenizer = pre
    backend.add_tokens(list(added))
    return backend


def unigram():
    return tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -1.0), ("ab", -1.5)], unk_id=0))


REFUSED = {
    "its model is Unigram, not BPE": unigram,
    "its tokens are made of bytes": lambda: bpe(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "(dropout)": lambda: bpe(dropout=0.1),
    "(ignore_merges)": lambda: bpe(ignore_merges=True),
    "(affix markers)": lambda: bpe(tokens=("##b", "ab"), merges=[("a", "##b")], continuing_subword_prefix="##"),
    "(fuse_unk)": lambda: bpe(fuse_unk=True),
    "leaves out unknown characters": lambda: bpe(unk_token=None),
    "merges the tokens of bytes": lambda: bpe(tokens=("<0xC3><0xA9>",), merges=[("<0xC3>", "<0xA9>")]),
    "its token '<x>' decides": lambda: bpe(added=[AddedToken("<x>", lstrip=True)]),
    "its token '<y>' decides": lambda: bpe(added=[AddedToken("<y>", single_word=True)]),
    "its NFKC may look": lambda: bpe(normalizer=normalizers.NFKC()),
    "its Strip may look": lambda: bpe(normalizer=normalizers.Strip()),
    "its Replace may look": lambda: bpe(normalizer=normalizers.Replace(tokenizers.Regex(" +"), "\u2581")),
    "its Prepend may look": lambda: bpe(normalizer=normalizers.Prepend("a")),
    "its Whitespace may look": lambda: bpe(pre_tokenizer=pre_tokenizers.Whitespace()),
    "U+E000": lambda: bpe(normalizer=normalizers.Prepend("\u2581"), tokens=("\ue000",), merges=[]),
}


@pytest.mark.parametrize(("problem", "make"), REFUSED.items(), ids=REFUSED)
def test_where_a_spanning_token_is_not_what_decides_only_pre_tokens_count(problem, make):
    tokenizer = Tokenizer.create(make())
    assert problem in tokenizer.border_problem
    assert tokenizer.borders("ca cab") == tokenizer.pre_token_borders("ca cab")


def test_the_borders_of_byte_level_tokenizers_are_those_of_their_pre_tokens():
    from tests.tokenizers_from_wheels import small_tokenizer

    tokenizer = small_tokenizer()
    assert not tokenizer.adds_space and tokenizer.encode("Up", continues=True) == tokenizer.encode("Up")
    assert tokenizer.borders("P _\n_x") == tokenizer.pre_token_borders("P _\n_x")
