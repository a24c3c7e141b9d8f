"""Tokenizers of GGUF files, against what llama.cpp (in node-llama-cpp 3.21.1) makes of the same files.

The files are written here and hold no tensors. Their vocabulary is the 256 bytes and the pairs and triples of
characters in TEXT, so that each wrong split of TEXT gives other tokens.
"""

import gguf as reference
import pytest

from nlrl_jax.lm.spelling import byte_table
from nlrl_jax.weights.gguf_tokenizer import tokenizer_from_gguf
from tests.tokenizers_from_wheels import special_ids
from tests.weights.gguf_writing import add_tokenizer_keys, finish

TEXT = "the abc 12345678 1234 a1b22 !!?! $+<=> isn't I'VE  x\n\n y .\n\t z é’s —“q” 中文 ²³½ 한 \r\n end"
BYTES = list(byte_table().values())
C = "".join(byte_table()[byte] for byte in TEXT.encode())
PAIRS = [f"{a} {b}" for a, b in zip(C, C[1:])] + [f"{a}{b} {c}" for a, b, c in zip(C, C[1:], C[2:])]
MERGES = list(dict.fromkeys(PAIRS + [f"{a} {b}{c}" for a, b, c in zip(C, C[1:], C[2:])]))
PLAIN = BYTES + list(dict.fromkeys(merge.replace(" ", "") for merge in MERGES))
FIRST = len(PLAIN)  # the id of the first token that a test adds


@pytest.fixture
def write(tmp_path):
    def write(tokens=("<|endoftext|>",), types=None, pre="gpt-2", merges=MERGES, plain_types=True, **keys):
        writer = reference.GGUFWriter(tmp_path / "model.gguf", "llama")
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(PLAIN + list(tokens))
        if types != "none":
            writer.add_token_types([1] * FIRST * plain_types + list(types or [3] * len(tokens)))
        if merges is not None:
            writer.add_token_merges(merges)
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        add_tokenizer_keys(writer, keys)
        finish(writer)
        return tmp_path / "model.gguf"

    return write


DEFAULT = (
    "the Ġa bc Ġ 123 456 78 Ġ 123 4 Ġa 1 b 22 Ġ !! ?! Ġ $+ <=> Ġi sn ' t ĠI ' VE Ġ Ġx ĊĊ Ġy Ġ . Ċĉ Ġz ĠÃ© âĢĻ s Ġ "
    "âĢĶ âĢľ q âĢĿ Ġä ¸Ń æĸĩ Ġ Â² Â³ Â½ Ġí ķľ ĠčĊ Ġe nd"
)
GPT2 = (
    "the Ġa bc Ġ1 23 45 678 Ġ1 234 Ġa 1 b 22 Ġ! !?! Ġ$ +< => Ġi sn 't ĠI ' VE Ġ Ġx ĊĊ Ġy Ġ. Ċĉ Ġz ĠÃ© âĢĻ s Ġ âĢĶ âĢľ "
    "q âĢĿ Ġä ¸Ń æĸĩ ĠÂ ²Â ³Â½ Ġí ķľ ĠčĊ Ġe nd"
)
SMOLLM = (
    "the Ġa bc Ġ 1 2 3 4 5 6 7 8 Ġ 1 2 3 4 Ġa 1 b 2 2 Ġ! !?! Ġ$ +< => Ġi sn 't ĠI ' VE Ġ Ġx ĊĊ Ġy Ġ. Ċĉ Ġz ĠÃ© âĢĻ s Ġ "
    "âĢĶ âĢľ q âĢĿ Ġä ¸Ń æĸĩ Ġ Â² Â³ Â½ Ġí ķľ ĠčĊ Ġe nd"
)
LLAMA3 = (
    "the Ġa bc Ġ 123 456 78 Ġ 123 4 Ġa 1 b 22 Ġ! !?! Ġ$ +< => Ġi sn 't ĠI 'VE Ġ Ġx ĊĊ Ġy Ġ.Ċ ĉ Ġz ĠÃ© âĢ Ļs Ġ âĢĶ âĢľ "
    "q âĢĿ Ġä ¸Ń æĸĩ Ġ Â² Â³ Â½ Ġí ķľ ĠčĊ Ġe nd"
)
QWEN2 = LLAMA3.replace("123 456 78", "1 2 3 4 5 6 7 8").replace("123 4", "1 2 3 4").replace("b 22", "b 2 2")


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("default", DEFAULT), ("gpt-2", GPT2), ("phi-2", GPT2), ("smollm", SMOLLM), ("starcoder", SMOLLM),
        ("llama-bpe", LLAMA3), ("llama3", LLAMA3), ("qwen2", QWEN2), ("deepseek-r1-qwen", QWEN2),
        ("qwen35", QWEN2),
    ],
)  # fmt: skip
def test_text_is_split_as_llama_cpp_splits_it(write, pre, pieces):
    tokenizer = tokenizer_from_gguf(write(pre=pre))
    assert [PLAIN[i] for i in tokenizer.encode(TEXT)] == pieces.split()
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_qwen3_5_keeps_combining_marks_with_their_letters(write):
    text = "ne\u0301e \u0e17\u0e35\u0e48"  # decomposed letters would be composed first: Thai marks are not
    splits = {}
    for pre in ("qwen2", "qwen35"):
        backend = tokenizer_from_gguf(write(pre=pre)).backend
        splits[pre] = len(backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text)))
    assert splits == {"qwen2": 3, "qwen35": 2}


def test_without_a_pre_tokenizer_it_is_llama_cpps_default_with_a_warning(write):
    with pytest.warns(UserWarning, match="does not name its pre-tokenizer .tokenizer.ggml.pre.; llama.cpp's default"):
        tokenizer = tokenizer_from_gguf(write(pre=None))
    assert [PLAIN[i] for i in tokenizer.encode(TEXT)] == DEFAULT.split()


# What llama.cpp's server (xllamacpp 2026.10.11549) detokenizes, and how it reads the text; -1 stands for the row's id.
ROWS = [
    ("plain", 1, "plain", "plain"), ("[PAD7]", 5, "", "[PAD7]"), ("undefined", 0, "", "undefined"),
    ("<0x41>", 6, "A", "<0x41>"), ("<0xe9>", 6, "\ufffd", "<0xe9>"), ("unknown", 2, "", -1), ("<x>", 3, "", -1),
    ("<y> z", 4, "<y> z", -1), ("[éé]", 5, "", "[éé]"),
]  # fmt: skip


@pytest.mark.parametrize("last", ["[PAD9]", "<last>"])
@pytest.mark.parametrize(("text", "kind", "shown", "read"), ROWS)
def test_rows_of_all_types_have_llama_cpps_texts(write, tmp_path, text, kind, shown, read, last):
    token = "".join(byte_table()[byte] for byte in text.encode()) if kind == 1 else text
    tokens, types = [token, "<|endoftext|>", last], [kind, 3, 5 if last == "[PAD9]" else 3]
    tokenizer = tokenizer_from_gguf(write(tokens, types, eos_token_id=FIRST + 1))
    a, b = BYTES.index("a"), BYTES.index("b")
    assert tokenizer.decode([a, FIRST, b, FIRST + 2]) == f"a{shown}b"
    ids = tokenizer.encode(f"a{text}b")
    assert ids == [a, FIRST, b] if read == -1 else FIRST not in ids and tokenizer.decode(ids) == f"a{text}b"
    flat, offsets = tokenizer.token_bytes
    assert bytes(flat[offsets[FIRST] : offsets[FIRST + 1]]).decode(errors="replace") == shown
    tokenizer.save_pretrained(tmp_path)
    assert last == "<last>" or "PAD9" not in (tmp_path / "tokenizer.json").read_text("utf-8")


def test_an_unused_row_that_a_merge_makes_is_read_but_not_shown(write):
    types = [1 + 4 * (token == "the") for token in PLAIN]
    tokenizer = tokenizer_from_gguf(write(["<|endoftext|>"], [*types, 3], plain_types=False, eos_token_id=FIRST))
    (the,) = tokenizer.encode("the")
    assert (
        PLAIN[the] == "the"
        and tokenizer.decode([the]) == ""
        and tokenizer.decode(tokenizer.encode("the abc")) == " abc"
    )


@pytest.mark.parametrize(
    "text",
    ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "_<EOT>", "</s>", "<|eom_id|>", "[EOS]", "<eos>", "<PAD>",
     "<|file_sep|>", "<reponame>", "<｜end▁of▁sentence｜>"],
)  # fmt: skip
@pytest.mark.parametrize("kind", [1, 3])  # a plain or a control token
def test_a_token_ends_a_reply_by_its_text(write, text, kind):
    tokenizer = tokenizer_from_gguf(write(["<s>", text], [3, kind], eos_token_id=FIRST))
    assert tokenizer.eos_ids == (FIRST, FIRST + 1)
    assert tokenizer.encode(f"a{text}b") == [BYTES.index("a"), FIRST + 1, BYTES.index("b")]


@pytest.mark.parametrize(
    ("tokens", "keys", "ends"),
    [
        (["<s>", "<|im_start|>"], {"eos": 0}, {0}),
        (["<s>", "<|fim_prefix|>"], {"eos": 0}, {0}),
        (["<s>", "<x>", "<|eot_id|>"], {"eos": 0, "eot": 1}, {0, 1, 2}),
        (["<s>", "<x>"], {"eos": 0, "eom": 1}, {0, 1}),
        (["<s>", "<x>", "<|fim_pad|>"], {"eos": 0, "fim_pad": 1}, {0, 1}),
        (["<|return|>", "<|end|>"], {"eos": 0}, {0, 1}),
        (["<|return|>", "<|call|>", "<|end|>"], {"eos": 0}, {0, 1}),
        (["<|tool_response>", "</s>"], {"eos": 0}, {0}),
        (["<|im_end|>"], {}, {0}),
    ],
)
def test_the_ends_of_a_reply(write, tokens, keys, ends):
    path = write(tokens, **{f"{role}_token_id": FIRST + i for role, i in keys.items()})
    assert set(tokenizer_from_gguf(path).eos_ids) == {FIRST + i for i in ends}


def test_no_end_at_all_is_said(write):
    with pytest.warns(UserWarning, match="names no token that ends a reply"):
        assert tokenizer_from_gguf(write(["<x>"])).eos_ids == ()


TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"


@pytest.mark.parametrize(
    ("pre", "template", "add", "text"),
    [
        ("gpt-2", TEMPLATE, True, "<s>[user]hi"),
        ("gpt-2", "{{ bos_token }}" + TEMPLATE, True, "<s>[user]hi"),
        ("gpt-2", "{{ bos_token }}" + TEMPLATE, False, "<s>[user]hi"),
        ("gpt-2", TEMPLATE, None, "[user]hi"),
        ("llama-bpe", TEMPLATE, None, "<s>[user]hi"),
        ("llama-bpe", TEMPLATE, False, "[user]hi"),
    ],
)
def test_a_prompt_begins_with_the_bos_where_the_file_says_so(write, pre, template, add, text):
    keys = {} if add is None else {"add_bos_token": add}
    path = write(["<s>", "<eos>"], pre=pre, chat_template=template, bos_token_id=FIRST, **keys)
    assert tokenizer_from_gguf(path).render_chat([{"role": "user", "content": "hi"}]) == text


def test_token_types(write):
    tokenizer = tokenizer_from_gguf(write(["<unk>", "<u>", "<|endoftext|>", ""], [2, 4, 3, 1]))
    assert tokenizer.encode("<unk><u>") == [FIRST, FIRST + 1]
    assert special_ids(tokenizer) == {FIRST, FIRST + 2}
    untyped = tokenizer_from_gguf(write(types="none"))
    assert special_ids(untyped) == {FIRST} == set(untyped.eos_ids)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"merges": None}, "lacks the metadata key tokenizer.ggml.merges"),
        ({"merges": ["ab"]}, "tokenizer.ggml.merges has 'ab'; a merge is two tokens with a space between"),
        ({"merges": ["a ~~"]}, "tokenizer.ggml.merges does not fit its vocabulary"),
        ({"pre": "nonsense"}, "names the pre-tokenizer 'nonsense'; known are .*'qwen2'"),
        ({"tokens": ["<x>", "<x>"]}, "lists a token twice"),
        ({"eos_token_id": 9999}, "tokenizer.ggml.eos_token_id is 9999; the vocabulary has"),
        ({"eos_token_id": "5"}, "has tokenizer.ggml.eos_token_id = 5; it must be of type int"),
        ({"eos_token_id": True}, "has tokenizer.ggml.eos_token_id = True; it must be of type int"),
        ({"add_bos_token": "yes"}, "has tokenizer.ggml.add_bos_token = yes; it must be of type bool"),
        ({"chat_template": 3}, "has tokenizer.chat_template = 3; it must be of type str"),
        ({"add_bos_token": True}, "add_bos_token is true, but tokenizer.ggml.bos_token_id is missing"),
    ],
)
def test_refused_by_name(write, arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        tokenizer_from_gguf(write(**arguments))
    assert "\n" not in str(error.value)
