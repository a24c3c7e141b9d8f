"""SentencePiece's vocabularies in GGUF files, against the rule by which llama.cpp and SentencePiece join characters."""

import random

import gguf as reference
import pytest

from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.weights.gguf_tokenizer import tokenizer_from_gguf
from tests.small_sentencepiece import SPACE, learned
from tests.tokenizers_from_wheels import special_ids
from tests.weights.gguf_writing import add_tokenizer_keys, finish

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
RUNS = [SPACE * n for n in (2, 3, 4, 6, 8)]
WORDS = [token for token in learned()[0] if set(token) != {SPACE} and token != "\n\n"] + [SPACE]
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, *RUNS, *WORDS, "[INST]", "\n\n", "[PAD1]", "<s", "s>", "[PAD2]"]
TYPES = [2, 3, 3, *[6] * 256, *[1] * len(RUNS + WORDS), 3, 4, 5, 1, 1, 5]
SCORES = [0.0] * 259 + [-1e9] * len(RUNS) + [-float(i) for i in range(len(WORDS))] + [-1e4] * 6
ID = {token: i for i, token in enumerate(TOKENS)}
STRINGS = [
    "(3, 0)",
    "\n",
    "\n\n",
    " ",
    "  ",
    "     ",
    " " * 9,
    " " * 17,
    "P _ O",
    "Goal: ",
    "Holes",
    "é",
    "日",
    "🜁",
    "Up",
]
STRINGS += ["<observe>", "</action>", "> </", "<s >", "<0x41>", SPACE, "You are playing", "\t"]


@pytest.fixture
def write(tmp_path):
    def write(tokens=TOKENS, scores=SCORES, types=TYPES, **keys):
        writer = reference.GGUFWriter(tmp_path / "model.gguf", "llama")
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        if scores is not None:
            writer.add_token_scores(scores)
        writer.add_token_types(types)
        ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
        add_tokenizer_keys(writer, {**ids, **keys})
        finish(writer)
        return tmp_path / "model.gguf"

    return write


def joined(text: str) -> list[int]:
    """The ids of a text without added tokens: the best pair of neighbours is joined as long as there is one."""
    parts = list(text.replace(" ", SPACE))
    while True:
        pairs = [(ID.get(a + b, 0), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
        best = min(((-SCORES[token], i) for token, i in pairs if TYPES[token] in (1, 4, 5)), default=None)
        if best is None:
            break
        parts[best[1] : best[1] + 2] = [parts[best[1]] + parts[best[1] + 1]]
    in_bytes = ([ID[f"<0x{byte:02X}>"] for byte in part.encode()] for part in parts if part not in ID)
    return [i for part in parts for i in ([ID[part]] if part in ID else next(in_bytes))]


@pytest.mark.parametrize("adds_space", [None, True, False])
def test_texts_are_joined_by_score(write, adds_space):
    keys = {} if adds_space is None else {"add_space_prefix": adds_space}
    tokenizer, rng = tokenizer_from_gguf(write(**keys)), random.Random(0)
    prefix = "" if adds_space is False else " "
    assert tokenizer.adds_space == bool(prefix) and not tokenizer.border_problem
    for _ in range(200):
        text = "".join(rng.choice(STRINGS) for _ in range(rng.randint(1, 10)))
        # The user-defined "\n\n" is matched first, as are control tokens; a space is put after each of them.
        want, rest = [], text
        while rest:
            before, found, rest = rest.partition("\n\n")
            want += joined(prefix + before) if before else []
            want += [ID["\n\n"]] if found else []
        assert tokenizer.encode(text) == want, text
        if SPACE not in text:
            decoded = tokenizer.decode(want)
            assert decoded == text if not prefix or "\n\n" not in text else decoded.replace("\n\n ", "\n\n") == text


def test_control_tokens_are_matched_whole_and_never_made_by_merges(write, tmp_path):
    tokenizer = tokenizer_from_gguf(write(add_space_prefix=False))
    assert tokenizer.encode("(<s>") == [ID["("], ID["<s>"]] and special_ids(tokenizer) == {0, 1, 2, ID["[INST]"]}
    spelt = tokenizer.encode(tokenizer.as_content("(<s>"))
    assert spelt == [ID["("], *joined("<s>")] and ID["<s>"] not in spelt
    assert tokenizer.decode([ID["<s>"], ID["[PAD1]"], ID["<0x41>"]], False) == "<s>A"
    assert tokenizer.vocab_size == len(TOKENS) - 1  # an unused row behind all others fills the weights up
    tokenizer.save_pretrained(tmp_path / "folder")
    again = Tokenizer.from_pretrained(tmp_path / "folder")
    assert again.encode("Up  </s>\n\né🜁") == tokenizer.encode("Up  </s>\n\né🜁")


def test_a_prompt_begins_with_the_bos_unless_the_file_says_no(write):
    template, chat = "{% for m in messages %}{{ m['content'] }}{% endfor %}", [{"role": "user", "content": "Up"}]
    for keys, want in (({}, "<s>Up"), ({"add_bos_token": True}, "<s>Up"), ({"add_bos_token": False}, "Up")):
        tokenizer = tokenizer_from_gguf(write(chat_template=template, **keys))
        assert tokenizer.render_chat(chat) == want and tokenizer.eos_ids == (2,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scores": None}, "lacks the metadata key tokenizer.ggml.scores"),
        ({"scores": SCORES[:-1]}, r"gives a score to \d+ only"),
        ({"scores": [1] * len(TOKENS)}, "has 1 in tokenizer.ggml.scores; it must hold numbers"),
        ({"add_space_prefix": 1}, "has tokenizer.ggml.add_space_prefix = 1; it must be of type bool"),
        ({"unknown_token_id": 9999}, "tokenizer.ggml.unknown_token_id is 9999; the vocabulary has"),
    ],
)
def test_refused_by_name(write, arguments, message):
    with pytest.raises(ValueError, match=message):
        tokenizer_from_gguf(write(**arguments))
