"""Folders of other people, read by us and by transformers: the same ids, special tokens, ends and rendered chats."""

import copy
import json
import random

import pytest
from tokenizers import decoders, models, normalizers, pre_tokenizers

from nlrl_jax.lm import tokenizer_files
from nlrl_jax.lm.tokenizer import Tokenizer
from tests import tokenizers_from_wheels as wheels
from tests.lm.test_borders import STRINGS, in_parts
from tests.small_sentencepiece import small

USER = {"role": "user", "content": "P _ O _\n(1, 23) été\n", "name": None}
CHAT = [{"role": "system", "content": "Be  brief."}, USER]
TEXTS = (
    "Up 123 12  Left || <|im_end|> a<|im_start|>b <tool>x </tool> <pad> [MASK] <img> <end>now",
    "E\u0301te\u0301 ﬁ I'm here , isn't it ?  ",
    " <extra> Café  ",
)
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>\n{% endfor %}"
PIECES = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token is defined }}|{{ image_token }}|" + TEMPLATE
OPEN = "{% if add_generation_prompt %}[assistant]{% endif %}"
SPECIAL = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
END = {"bos_token": None, "eos_token": "<|im_end|>"}


def token(content, **fields):
    return {"content": content, **SPECIAL, **fields}


def entries(spec, **changes):
    """The tokenizer.json with other fields for some of its added tokens."""
    changed = lambda entry: entry | changes.get(entry["content"].strip("<|>"), {})
    return {**spec, "added_tokens": [changed(entry) for entry in spec["added_tokens"]]}


def with_parts(**parts):
    """An edit of tokenizer.json: other parts of the tokenizer, as `tokenizers` writes them."""

    def edit(spec):
        backend = copy.deepcopy(wheels.small_tokenizer().backend)
        for name, part in parts.items():
            setattr(backend, name, part)
        return json.loads(backend.to_str())

    return edit


def word_pieces(spec):
    words = "[UNK] up left p o it is ##n ' t , ? i m here ete cafe 1".split()
    model = models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    parts = {"normalizer": normalizers.BertNormalizer(), "pre_tokenizer": pre_tokenizers.BertPreTokenizer()}
    edited = with_parts(**parts, model=model, decoder=decoders.WordPiece(cleanup=False))(spec)
    return edited | {"added_tokens": []}


# name -> (edit of tokenizer.json, files beside it); a file that is None is left out
FOLDERS = {
    "plain": (None, {}),
    "eos only in config.json": (
        None, {"config": {"eos_token_id": [0, 2]}, "tokenizer_config": {"chat_template": PIECES}}),
    "scalar eos 0": (None, {"generation_config": {"eos_token_id": 0}, "config": {"eos_token_id": 7}}),
    "eos is a list of one": (None, {"generation_config": {"eos_token_id": [1]}}),
    "eos null, pad -1": (None, {"generation_config": {"eos_token_id": None, "pad_token_id": -1}}),
    "no config of the tokenizer": (None, {"tokenizer_config": None, "chat_template.jinja": TEMPLATE}),
    "tokens of tokenizer_config alone": (
        lambda spec: spec | {"added_tokens": []},
        {"tokenizer_config": END | {"added_tokens_decoder": {
            "0": token("<|endoftext|>"), "1": token("<|im_start|>"), "2": token("<|im_end|>", rstrip=True),
            "321": token("<tool>", special=False, normalized=True),
            "322": token("</tool>", lstrip=True, special=False)}}},
    ),
    "added tokens out of order and with gaps": (
        None,
        {"tokenizer_config": END | {
            "added_tokens_decoder": {"900": token("<end>"), "400": token("<tool>", special=False)}}},
    ),
    "additional special tokens": (
        None, {"tokenizer_config": END | {"additional_special_tokens": ["<extra>", "<tool>"]}}),
    "extra special tokens beside them": (
        None,
        {"tokenizer_config": END | {"extra_special_tokens": ["<extra>"], "additional_special_tokens": ["<img>"]}},
    ),
    "named extra tokens": (
        None, {"tokenizer_config": END | {"extra_special_tokens": {"image_token": "<img>"}, "chat_template": PIECES}}),
    "a token of the model's own": (None, {"tokenizer_config": END | {"image_token": "<img>", "chat_template": PIECES}}),
    "tokens as objects": (
        None,
        {"tokenizer_config": {
            "eos_token": {"__type": "AddedToken", **token("<end>", lstrip=True)}, "pad_token": "<pad>",
            "mask_token": {"__type": "AddedToken", **token("[MASK]", special=False, normalized=True)},
            "chat_template": PIECES + OPEN}},
    ),
    "special_tokens_map overrides": (
        None,
        {"tokenizer_config": END | {"chat_template": PIECES}, "special_tokens_map": {
            "eos_token": token("<end>", rstrip=True), "pad_token": "<pad>", "image_token": "<img>",
            "additional_special_tokens": ["<extra>"]}},
    ),
    "special_tokens_map after added_tokens_decoder": (
        None,
        {"tokenizer_config": END | {"added_tokens_decoder": {"2": token("<|im_end|>")}},
         "special_tokens_map": {"eos_token": "<end>", "pad_token": "<pad>"}},
    ),
    "added_tokens.json": (
        None,
        {"added_tokens": {"<tool>": 400, "<extra>": 399, "<|im_end|>": 2},
         "special_tokens_map": {"eos_token": "<tool>"}},
    ),
    "special tokens that tokenizer.json calls none": (
        lambda spec: entries(spec, im_end={"special": False}, im_start={"special": False, "rstrip": True}), {}),
    "an eos that is a plain word": (None, {"tokenizer_config": {"eos_token": "Ġ||", "bos_token": "P"}}),
    "bos and eos are added": (
        None, {"tokenizer_config": END | {"bos_token": "<|im_start|>", "add_bos_token": True, "add_eos_token": True}}),
    "a bos that is named, and added by no post-processor": (
        None, {"tokenizer_config": END | {"bos_token": "<|im_start|>", "add_bos_token": True}}),
    "null and false": (
        None,
        {"tokenizer_config": {
            "bos_token": None, "eos_token": "<|im_end|>", "unk_token": None, "pad_token": None, "add_bos_token": False,
            "extra_special_tokens": None, "chat_template": PIECES, "model_max_length": 1e30, "legacy": None}},
    ),
    "padding in tokenizer.json": (
        lambda spec: spec | {"padding": {
            "strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
            "pad_token": "<|endoftext|>"}, "truncation": {
            "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}},
        {"tokenizer_config": {"eos_token": "<|im_end|>", "chat_template": PIECES}},
    ),
    "template file before config": (
        None, {"chat_template.jinja": "file " + TEMPLATE + OPEN, "chat_template": {"a": 1}}),
    "named templates": (
        None,
        {"tokenizer_config": END | {"chat_template": [
            {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named " + TEMPLATE}]}},
    ),
    "additional templates": (
        None, {"chat_template.jinja": "main " + TEMPLATE, "additional_chat_templates/tool_use.jinja": "tools"}),
    "additional templates alone": (None, {"additional_chat_templates/tool_use.jinja": "tools"}),
    "no template": (None, {"tokenizer_config": END}),
    "a generation block": (
        None,
        {"chat_template.jinja":
         "{% set x = 1 %}{% for m in messages %}{% generation %}{{ x }}{{ m.content }}\n{% endgeneration %}"
         "{%- generation -%} {{ loop.index }} {%- endgeneration -%}\n{% endfor %}" + OPEN},
    ),
    "all of the environment": (
        None,
        {"chat_template.jinja":
         "{{ messages | tojson }}{{ messages | tojson(indent=2, sort_keys=true) }}"
         "{{ 'é<' | tojson(ensure_ascii=true, separators=(',', ':')) }}"
         "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.content }}{% continue %}{% endfor %}"
         "{{ tools is none }}{{ documents is none }}{{ tools }}{{ nothing is defined }}{{ strftime_now('%Y') }}"
         "{% set ns = namespace(a=dict(b=1)) %}{% set ns.a = {'c': 2} %}{{ ns.a }}{{ range(3) | list }}"
         "{{ messages[1].get('name', 'none') }}{{ 'é'.encode() }}   \n\n"},
    ),
    "a template that refuses": (None, {"chat_template.jinja": "{{ raise_exception('roles must alternate') }}"}),
    "a template that fails": (None, {"chat_template.jinja": "{{ 1 + 'a' }}"}),
    "a template that needs a bos": (None, {"chat_template.jinja": "{{ bos_token + 'x' }}"}),
    "GPT2Tokenizer": (
        with_parts(pre_tokenizer=pre_tokenizers.Digits(individual_digits=True)),
        {"tokenizer_config": {"tokenizer_class": "GPT2Tokenizer", "chat_template": PIECES}},
    ),
    "GPT2Tokenizer with a blank in front": (
        None, {"tokenizer_config": END | {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True}}),
    "qwen2, whatever class is named": (
        None,
        {"config": {"model_type": "qwen2"},
         "tokenizer_config": {"chat_template": PIECES, "additional_special_tokens": ["P"]}},
    ),
    "qwen3 without a class": (
        None,
        {"config": {"model_type": "qwen3"}, "tokenizer_config": END | {"added_tokens_decoder": {
            "1": token("<|im_start|>"), "2": token("<|im_end|>"), "322": token("<tool>", special=False)}}},
    ),
    "qwen3_5, another class": (None, {"config": {"model_type": "qwen3_5"}, "tokenizer_config": END | {
        "tokenizer_class": "Qwen2Tokenizer"}}),
    "qwen3_5_text, its class": (None, {"config": {"model_type": "qwen3_5_text"}, "tokenizer_config": END | {
        "tokenizer_class": None}}),
    "qwen3_5_text, Qwen2's": (None, {"config": {"model_type": "qwen3_5_text"}, "tokenizer_config": END | {
        "tokenizer_class": "Qwen2Tokenizer"}}),
    "qwen3, general class": (None, {"config": {"model_type": "qwen3"}}),
    "LlamaTokenizer that is byte-level": (None, {"tokenizer_config": END | {"tokenizer_class": "LlamaTokenizerFast"}}),
    "LlamaTokenizer": (
        with_parts(pre_tokenizer=pre_tokenizers.Metaspace(), decoder=decoders.Metaspace()),
        {"tokenizer_config": {"tokenizer_class": "LlamaTokenizer", "eos_token": "<|im_end|>", "legacy": True}},
    ),
    "no config.json": (None, {"config": None}),
    "a normalizer": (with_parts(normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])), {}),
    "a blank in front": (
        with_parts(normalizer=normalizers.Prepend("Ġ"), pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
        {"tokenizer_config": END | {"add_prefix_space": False}},
    ),
    "clean-up does nothing to a BPE": (None, {"tokenizer_config": END | {"clean_up_tokenization_spaces": True}}),
    "clean-up that is insisted on": (
        None,
        {"tokenizer_config": END | {
            "clean_up_tokenization_spaces": True,
            "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": True}},
    ),
    "clean-up of words": (
        word_pieces,
        {"tokenizer_config": {"clean_up_tokenization_spaces": True, "eos_token": "[SEP]", "unk_token": "[UNK]"}},
    ),
    "a post-processor that adds tokens, and blanks around blocks": (
        lambda spec: spec | {"post_processor": {
            "type": "TemplateProcessing", "pair": [],
            "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}}}},
        {"chat_template.jinja": "{% for m in messages %}\n  {{ m.content }}{% endfor %}{{ eos_token }}"},
    ),
    "special tokens are split": (None, {"tokenizer_config": END | {"split_special_tokens": True}}),
}  # fmt: skip


def write(folder, edit, files):
    """A folder with the small tokenizer, edited, and with these files beside it."""
    wheels.small_tokenizer().save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    spec = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(edit(spec) if edit else spec))
    for name, contents in ({"config": {"model_type": "llama"}} | files).items():
        path = folder / (name if "." in name else f"{name}.json")
        if contents is None:
            path.unlink(missing_ok=True)
            continue
        path.parent.mkdir(exist_ok=True)
        if name == "config":
            contents = {"model_type": "llama"} | contents
        path.write_text(contents if isinstance(contents, str) else json.dumps(contents))


def ends(folder):
    from transformers import GenerationConfig

    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists():
            ids = GenerationConfig.from_pretrained(folder, config_file_name=name).eos_token_id
            return set(ids) if isinstance(ids, list) else {ids} - {None}
    return set()


def rendered(render):
    """What `render` returns for the chat, closed and open; None where it raises."""
    texts = []
    for opened in (False, True):
        try:
            texts.append(render(CHAT, add_generation_prompt=opened))
        except Exception:
            texts.append(None)
    return texts


def check_same(ours, theirs, more_ends=frozenset()):
    backend = theirs.backend_tokenizer
    assert ours.backend.get_vocab() == backend.get_vocab()
    assert repr(ours.backend.get_added_tokens_decoder()) == repr(backend.get_added_tokens_decoder())
    assert dict(ours.special_tokens) == theirs.special_tokens_map
    for text in TEXTS:
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text) == ids
        for skip in (False, True):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert set(ours.eos_ids) == {theirs.eos_token_id} - {None} | more_ends
    bos = theirs.bos_token_id
    assert ours.adds_bos == (bos is not None and theirs.encode("x")[:1] == [bos])
    if theirs.pad_token_id is not None:
        assert ours.pad_id == theirs.pad_token_id
    expected = rendered(lambda *args, **given: theirs.apply_chat_template(*args, tokenize=False, **given))
    assert rendered(ours.render_chat) == expected


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_read_as_transformers_reads_it(tmp_path, name):
    from transformers import AutoTokenizer

    write(tmp_path, *FOLDERS[name])
    ours, theirs = Tokenizer.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    check_same(ours, theirs, ends(tmp_path))
    again = tmp_path / "again"  # written by us, read by both
    ours.save_pretrained(again)
    (again / "config.json").write_text(json.dumps({"model_type": "llama"}))
    check_same(Tokenizer.from_pretrained(again), AutoTokenizer.from_pretrained(again), ends(again))
    assert Tokenizer.from_pretrained(again).eos_ids == ours.eos_ids
    if name.startswith("a post-processor"):  # is not ours to apply, but kept
        kept = [json.loads((folder / "tokenizer.json").read_text())["post_processor"] for folder in (tmp_path, again)]
        assert kept[0] == kept[1] is not None


@pytest.mark.parametrize(
    ("form", "model_type", "kind", "extra"),
    [
        ("first", "llama", "LlamaTokenizer", {}),
        ("first", "llama", "LlamaTokenizer", {"add_prefix_space": False, "unk_token": None}),
        ("legacy", "llama", "LlamaTokenizer", {"legacy": True}),
        ("legacy", "llama", "LlamaTokenizerFast", {"legacy": False, "add_prefix_space": None}),
        ("first", "llama", "CodeLlamaTokenizer", {}),
        ("legacy", "llama", "CodeLlamaTokenizer", {"add_prefix_space": False, "additional_special_tokens": ["<a>"]}),
        ("first", "mistral", "LlamaTokenizer", {"add_prefix_space": True}),
        ("legacy", "mistral", "LlamaTokenizerFast", {}),
        ("legacy", "mistral", None, {"legacy": False}),
        ("always", "llama", "PreTrainedTokenizerFast", {}),
        ("words", "llama", "TokenizersBackend", {}),
        ("gemma", "gemma", "GemmaTokenizer", {}),
        ("gemma", "gemma", "PreTrainedTokenizerFast", {}),
        ("gemma", "gemma3_text", "GemmaTokenizerFast", {"unk_token": {"__type": "AddedToken", **token("<unk>")}}),
        ("gemma", "gemma3_text", None, {"bos_token": None, "mask_token": "<a>"}),
        ("gemma", "gemma3", "GemmaTokenizer", {}),
        ("gemma", "gemma3", "LlamaTokenizer", {}),
    ],
)
def test_a_sentencepiece_folder_is_read_as_transformers_reads_it(tmp_path, monkeypatch, form, model_type, kind, extra):
    """Without transformers."""
    from transformers import AutoTokenizer

    small(form).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    contents = {**config, "tokenizer_class": kind, **extra}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in contents.items() if v or k in extra}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    theirs = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    monkeypatch.setattr(tokenizer_files, "_convert", None)
    ours = Tokenizer.from_pretrained(tmp_path)
    check_same(ours, theirs, ends(tmp_path))
    rng = random.Random(0)
    for _ in range(100):
        text = "".join(rng.choice(STRINGS) for _ in range(rng.randint(1, 12)))
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text) == ids
        assert ours.decode(ids, False) == theirs.decode(ids)
        assert in_parts(ours, text) == ids
    assert not ours.border_problem
