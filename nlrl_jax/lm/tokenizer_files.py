"""The text side of a Hugging Face folder, read as `transformers` 5 reads it.

Most folders are read with `tokenizers` alone. What `AutoTokenizer` builds by rules of its own instead of reading it
from `tokenizer.json`, and vocabularies of other kinds, are converted by `transformers` (extra `hub`). Rules:

- The class is the one that `tokenizer_config.json` names, or that of the `model_type` in `config.json`. Some classes
  take no more than vocabulary and merges from `tokenizer.json` (`lm.tokenizer_classes`). Whatever is named, Mistral's
  tokenizers are those of tokenizer.json, and Qwen2's of their class.
- Added tokens are those of `added_tokens_decoder` in `tokenizer_config.json`. Only without it those of
  `added_tokens.json` and `tokenizer.json` count, and `special_tokens_map.json`, which then overrides.
- A special token that is no added token is made one: at the end of the vocabulary if it is not in there.
- A template in `chat_template.jinja` or `additional_chat_templates/` counts before one in `tokenizer_config.json`.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, processors

from nlrl_jax.files import read_json
from nlrl_jax.lm.tokenizer_classes import CLASSES

# Vocabularies of other kinds of tokenizers, by file name.
_OTHER_KINDS = ("vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_NAMED = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_QWEN3 = dict.fromkeys(("qwen3", "qwen3_moe"), "Qwen2Tokenizer")
_GEMMA = dict.fromkeys(("gemma", "gemma3", "gemma3_text"), "GemmaTokenizer")
# The class of a folder that names none; that of a folder, whichever it names ("" is the general one).
_BY_MODEL_TYPE = {"": "", "llama": "", **_QWEN3, "qwen3_5_text": "Qwen3_5Tokenizer", **_GEMMA}
_ALWAYS = {"qwen2": "Qwen2Tokenizer", "qwen3_5": "Qwen3_5Tokenizer", "mistral": ""}
_AS_WRITTEN = ("", "PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend")


class TokenizerFiles(NamedTuple):
    """What a folder says of its tokenizer.

    backend: with all added tokens; without post-processor, truncation and padding.
    post_processor: the post-processor's JSON.
    special_tokens: name, such as "bos_token" -> text.
    chat_template: the default one; None where there is none.
    clean_up: decoding deletes the blanks before punctuation.
    """

    backend: tokenizers.Tokenizer
    post_processor: Mapping[str, Any] | None
    special_tokens: dict[str, str]
    chat_template: str | None
    clean_up: bool


def read_tokenizer(folder: pathlib.Path) -> TokenizerFiles:
    """The tokenizer of a folder.

    Raises:
      FileNotFoundError: there is no tokenizer in `folder`.
      ValueError: a file is damaged or cannot be converted.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        if not any((folder / name).is_file() for name in _OTHER_KINDS):
            content = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else "no such folder"
            raise FileNotFoundError(
                f"no tokenizer.json in {folder} (found: {content}); give a Hugging Face model folder"
            )
        return _convert(folder, "has no tokenizer.json, and its other kind of tokenizer")
    spec, config = read_json(path), _read(folder / "tokenizer_config.json")
    kind = _class_of(folder, spec, config)
    if kind not in (*_AS_WRITTEN, *CLASSES) or "fast_tokenizer_files" in config or "auto_map" in config:
        return _convert(folder, f"has a tokenizer of the class {kind or 'of its own'}, which")
    try:
        return _read_native(folder, spec, config, kind)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} and the files beside it do not describe a tokenizer: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_token_ids(folder: pathlib.Path) -> dict[str, tuple[int, ...]]:
    """The ids of "bos", "eos" and "pad" that generation_config.json names, else config.json; () where neither does.

    A negative number is not an id; old files have pad_token_id -1.

    Raises:
      ValueError: an id that is not a number.
    """
    ids_by_role: dict[str, tuple[int, ...]] = {role: () for role in ("bos", "eos", "pad")}
    for role in ids_by_role:
        for name in ("generation_config.json", "config.json"):
            value = _read(folder / name).get(f"{role}_token_id")
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
                raise ValueError(f"{folder / name}: {role}_token_id is {value!r}; it must be an id or a list of ids")
            ids_by_role[role] = ids_by_role[role] or tuple(i for i in ids if i >= 0)
    return ids_by_role


def build_backend(spec: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The Rust tokenizer of a tokenizer.json, without post-processor, truncation and padding.

    Raises:
      ValueError: it describes none.
    """
    try:
        plain = {**spec, "post_processor": None, "truncation": None, "padding": None}
        return tokenizers.Tokenizer.from_str(json.dumps(plain))
    except Exception as error:  # the Rust library raises nothing more specific
        raise ValueError(f"it does not describe a tokenizer: {error}") from None


def adding_bos(bos: str, backend: tokenizers.Tokenizer) -> dict[str, Any]:
    """The JSON of a post-processor that puts the bos before a text."""
    tokens = [(bos, backend.token_to_id(bos))]
    single, pair = [bos, "$A"], [bos, "$A", bos, "$B:1"]
    return json.loads(processors.TemplateProcessing(single=single, pair=pair, special_tokens=tokens).__getstate__())


def _class_of(folder: pathlib.Path, spec: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The class that `AutoTokenizer` takes; "" is its general one."""
    about = _read(folder / "config.json")
    model_type = about.get("model_type") or ""
    named = config.get("tokenizer_class") or about.get("tokenizer_class") or ""
    for name, value in (("model_type", model_type), ("tokenizer_class", named)):
        if not isinstance(value, str):
            raise ValueError(f"{folder}: {name} is {value!r}; it must be a name")
    named = named.removesuffix("Fast")
    if model_type in _ALWAYS:  # many such folders name another class by mistake
        return _ALWAYS[model_type]
    # Other families have classes of their own, which `transformers` converts.
    if model_type not in _BY_MODEL_TYPE:
        return model_type
    if named == "LlamaTokenizer" and any(
        '"ByteLevel"' in json.dumps(spec.get(k)) for k in ("pre_tokenizer", "decoder")
    ):
        return ""
    return named or _BY_MODEL_TYPE[model_type]


def _read_native(folder: pathlib.Path, spec: dict[str, Any], config: dict[str, Any], kind: str) -> TokenizerFiles:
    added = _added_tokens(folder, spec, config)
    defaults: Mapping[str, str] = {}
    known_class = CLASSES.get(kind)
    if known_class:
        if spec["model"].get("type", "BPE") != "BPE":
            return _convert(folder, f"has a tokenizer of the class {kind} that is not BPE, which")
        spec, defaults = known_class.rebuild(spec, config), known_class.special_tokens
    elif spec.get("padding"):
        defaults = {"pad_token": spec["padding"]["pad_token"]}
    named, extra = _special_tokens(folder, {**defaults, **config})
    backend = build_backend(spec)
    added_texts = {token.content for token in (*backend.get_added_tokens_decoder().values(), *added)}
    names = {_text(token) for token in named.values()}
    # Special tokens that the vocabulary lacks get the next ids, in this order.
    for token in (*named.values(), *extra):
        if _text(token) not in added_texts:
            added.append(token)
            added_texts.add(_text(token))
    backend.add_tokens([_as_added(token, _text(token) in names) for token in added])
    if kind == "Qwen2Tokenizer":
        texts = dict.fromkeys(_text(token) for token in (*named.values(), *extra))
        backend.add_tokens([AddedToken(text, special=True) for text in texts])
    backend.encode_special_tokens = bool(config.get("split_special_tokens"))
    forced = config.get("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")
    clean_up = config.get("clean_up_tokenization_spaces") and (forced or spec["model"].get("type", "BPE") != "BPE")
    special = {name: _text(token) for name, token in named.items()}
    template = _default_template(_template_files(folder) or config.get("chat_template"))
    adds_bos = known_class and known_class.adds_bos and "bos_token" in special
    post_processor = adding_bos(special["bos_token"], backend) if adds_bos else spec.get("post_processor")
    return TokenizerFiles(backend, post_processor, special, template, bool(clean_up))


def _added_tokens(folder: pathlib.Path, spec: Mapping[str, Any], config: Mapping[str, Any]) -> list[AddedToken]:
    """Added tokens in the order of their ids."""
    if "added_tokens_decoder" in config:
        by_id = {int(i): _token(value) for i, value in config["added_tokens_decoder"].items()}
        if wrong := [token for token in by_id.values() if isinstance(token, str)]:
            raise ValueError(f"the token {wrong[0]!r} of added_tokens_decoder is not an object")
    else:
        named, extra = _special_tokens(folder, config)
        special, by_id = {_text(token) for token in (*named.values(), *extra)}, {}
        for text, i in _read(folder / "added_tokens.json").items():
            by_id[i] = AddedToken(text, normalized=text not in special, special=text in special)
        for entry in spec.get("added_tokens") or ():
            by_id[entry["id"]] = _token({name: value for name, value in entry.items() if name != "id"})
    return [by_id[i] for i in sorted(by_id)]


def _special_tokens(folder: pathlib.Path, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Special tokens with a name, in the order in which new ones get ids, and those without; strings or AddedToken."""
    values = dict(config)
    if values.get("additional_special_tokens") and not values.get("extra_special_tokens"):
        values["extra_special_tokens"] = values.pop("additional_special_tokens")
    custom = {name: value for name, value in values.items() if name not in _NAMED and _is_named(name, value)}
    if "added_tokens_decoder" not in config:
        for name, value in _read(folder / "special_tokens_map.json").items():
            if isinstance(value, dict) and name != "extra_special_tokens":
                value = {**value, "__type": "AddedToken", "special": True}
            elif name == "extra_special_tokens" and isinstance(value, list):
                value = [*(values.get(name) or []), *value]
            values[name] = value
    later = {name: value for name, value in values.items() if name not in (*_NAMED, *custom) and _is_named(name, value)}
    extra = values.get("extra_special_tokens", values.get("additional_special_tokens")) or []
    if isinstance(extra, dict):
        custom, extra = {**custom, **extra}, []
    named = {name: values[name] for name in _NAMED if values.get(name) is not None} | later | custom
    return {name: _token(value) for name, value in named.items()}, [_token(value) for value in extra]


def _is_named(name: str, value: Any) -> bool:
    return name.endswith("_token") and (isinstance(value, str) or (isinstance(value, dict) and "content" in value))


def _token(value: Any) -> str | AddedToken:
    """A token is written as a string or as a dict with the key "content".

    Raises:
      ValueError: it is neither.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise ValueError(f"the token {value!r} is neither a string nor an object with a content")
    return AddedToken(**{name: part for name, part in value.items() if name != "__type"})


def _text(token: str | AddedToken) -> str:
    return token if isinstance(token, str) else token.content


def _as_added(token: str | AddedToken, named: bool) -> AddedToken:
    """Strings are special tokens, and so is what has a name."""
    if isinstance(token, str):
        return AddedToken(token, special=True)
    token.special = token.special or named
    return token


def _template_files(folder: pathlib.Path) -> dict[str, str]:
    files = {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    if (folder / "chat_template.jinja").is_file():
        files = {"default": folder / "chat_template.jinja", **files}
    return {name: path.read_text(encoding="utf-8") for name, path in files.items()}


def _default_template(value: Any) -> str | None:
    """`chat_template` is a string, or a list (or dict) of named templates of which "default" counts."""
    if isinstance(value, list):
        value = {entry["name"]: entry["template"] for entry in value}
    return value.get("default") if isinstance(value, dict) else value


def _convert(folder: pathlib.Path, problem: str) -> TokenizerFiles:
    """What `transformers` makes of the folder. `what` it holds is the middle of a sentence."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that torch is missing
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ValueError(f"{folder} {problem} is converted by transformers; run pip install 'nlrl_jax[hub]'") from None
    try:
        converted = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        spec = json.loads(converted.backend_tokenizer.to_str())
    except Exception as error:  # anything: each kind of tokenizer has a converter of its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"transformers cannot convert the tokenizer in {folder}: {reason} (pip install 'nlrl_jax[hub]' brings the "
            "packages it may need)"
        ) from None
    backend = build_backend(spec)
    backend.encode_special_tokens = converted.split_special_tokens
    forced = converted.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
    clean_up = converted.clean_up_tokenization_spaces and (forced or spec["model"]["type"] != "BPE")
    template = _default_template(converted.chat_template)
    return TokenizerFiles(backend, spec["post_processor"], converted.special_tokens_map, template, clean_up)


def _read(path: pathlib.Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
