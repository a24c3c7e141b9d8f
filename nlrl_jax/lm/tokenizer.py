"""A tokenizer, its chat template and its vocabulary as bytes.

Wraps a `tokenizers.Tokenizer` (the Rust library that also runs inside `transformers`) and renders
chat templates with jinja2. `transformers` is imported only to convert a folder without `tokenizer.json`, torch never.

    tokenizer = Tokenizer.from_pretrained("models/Qwen2.5-3B-Instruct")
    ids = tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": "Hello"}]))

`encode` never adds special tokens; a special token that is written in the text is recognised. The
text after a chat template is therefore the whole truth about the ids.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.sandbox
import numpy as np
import tokenizers

from nlrl_jax.files import read_json

# Vocabularies of other kinds of tokenizers, by file name.
_OTHER_KINDS = ("vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
    """Text to token ids and back.

    Attributes:
      backend: the Rust tokenizer, without post-processor, truncation and padding (`create` sees to that).
      chat_template: jinja2 source, or None for a base model.
      bos_token, eos_token, pad_token: as the chat template sees them; None where the model has none.
      eos_ids: every id that ends a reply.
      pad_id: id to pad with. Never infer a mask from it: for several models it is also an eos id.
      post_processor: the post-processor's JSON, only kept so that `save_pretrained` can write it back.
    """

    backend: tokenizers.Tokenizer = dataclasses.field(repr=False)
    chat_template: str | None = dataclasses.field(default=None, repr=False)
    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    eos_ids: tuple[int, ...] = ()
    pad_id: int = 0
    post_processor: Mapping[str, Any] | None = None

    @staticmethod
    def create(
        backend: tokenizers.Tokenizer,
        chat_template: str | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        pad_token: str | None = None,
        eos_ids: Sequence[int] = (),
    ) -> Tokenizer:
        """A tokenizer around a copy of `backend`.

        `eos_ids` are ids that end a reply in addition to `eos_token`; `pad_token` defaults to `eos_token`.

        Raises:
          ValueError: a named special token is not in the vocabulary.
        """
        spec = json.loads(backend.to_str())
        return _create(spec, chat_template, bos_token, eos_token, pad_token, eos_ids)

    @staticmethod
    def from_pretrained(folder: str | pathlib.Path) -> Tokenizer:
        """Reads a Hugging Face model folder.

        Reads `tokenizer.json`, and `tokenizer_config.json`, `chat_template.jinja` and `generation_config.json` where
        they exist. A folder with another kind of vocabulary is converted by `transformers` (extra `hub`).

        Raises:
          FileNotFoundError: there is no tokenizer in `folder`.
          ValueError: a file is damaged, cannot be converted, or names a special token that is not in the vocabulary.
        """
        folder = pathlib.Path(folder)
        path = folder / "tokenizer.json"
        if path.is_file():
            spec, config = read_json(path), _read_json(folder / "tokenizer_config.json")
        elif any((folder / name).is_file() for name in _OTHER_KINDS):
            spec, config = _convert(folder)
        else:
            content = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else "no such folder"
            raise FileNotFoundError(
                f"no tokenizer.json in {folder} (found: {content}); give a Hugging Face model folder"
            )
        eos_ids = _read_json(folder / "generation_config.json").get("eos_token_id") or ()
        template_file = folder / "chat_template.jinja"
        if template_file.is_file():
            template = template_file.read_text(encoding="utf-8")
        else:
            template = _default_template(config.get("chat_template"))
        bos, eos, pad = (_token_text(config.get(f"{role}_token")) for role in ("bos", "eos", "pad"))
        try:
            return _create(spec, template, bos, eos, pad, (eos_ids,) if isinstance(eos_ids, int) else eos_ids)
        except ValueError as error:
            raise ValueError(f"{path if path.is_file() else folder}: {error}") from None

    def save_pretrained(self, folder: str | pathlib.Path) -> None:
        """Writes what `from_pretrained` reads."""
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        spec = json.loads(self.backend.to_str()) | {"post_processor": self.post_processor}
        config = {"bos_token": self.bos_token, "eos_token": self.eos_token, "pad_token": self.pad_token}
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template
        _write_json(folder / "tokenizer.json", spec)
        _write_json(folder / "tokenizer_config.json", config)
        generation = {"eos_token_id": list(self.eos_ids), "pad_token_id": self.pad_id}
        _write_json(folder / "generation_config.json", generation)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; nothing is added."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that are not UTF-8 become U+FFFD."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)

    def words(self, text: str) -> list[tuple[int, int, list[int]]]:
        """The pre-tokens of `text` as (first character, one past the last, token ids).

        Merges never cross from one to the next. A special token is a pre-token of its own.
        """
        encoding = self.backend.encode(text, add_special_tokens=False)
        words: list[tuple[int, int, list[int]]] = []
        previous = None
        for token, word, (start, end) in zip(encoding.ids, encoding.word_ids, encoding.offsets, strict=True):
            if words and word == previous:
                first, last, ids = words[-1]
                words[-1] = (min(first, start), max(last, end), ids + [token])
            else:
                words.append((start, end, [token]))
            previous = word
        return words

    def borders(self, text: str) -> set[int]:
        """Character positions of `text` that no merge can cross; 0 and `len(text)` are among them.

        A position is left out where a special token or a normalizer swallows characters around it.
        """
        words = self.words(text)
        touching = {right[0] for left, right in itertools.pairwise(words) if left[1] == right[0]}
        return touching | {0, len(text)}

    def render_chat(self, chat: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """The chat as the model's one text.

        Args:
          chat: messages `{"role": ..., "content": ...}`.
          add_generation_prompt: whether to open the assistant's turn at the end. If the last message is the
            assistant's, it is left open: its content stands behind the opened turn as it is. Without a chat template
            such a chat is the contents of its messages with an empty line between them.

        Raises:
          ValueError: there is no chat template and no open message, or the template refuses the chat.
        """
        if add_generation_prompt and chat and chat[-1]["role"] == "assistant":
            if self.chat_template is None:
                return "\n\n".join(message["content"] for message in chat)
            return self.render_chat(chat[:-1]) + chat[-1]["content"]
        if self.chat_template is None:
            raise ValueError("this tokenizer has no chat template; use an instruct model's, or pass chat_template=")
        try:
            return _jinja(self.chat_template).render(
                messages=[dict(message) for message in chat],
                add_generation_prompt=add_generation_prompt,
                bos_token=self.bos_token or "",
                eos_token=self.eos_token or "",
                pad_token=self.pad_token or "",
            )
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template refused the chat: {error}") from error

    @functools.cached_property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included (the largest id plus one)."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of special tokens; they carry no text."""
        return frozenset(i for i, token in self.backend.get_added_tokens_decoder().items() if token.special)

    @functools.cached_property
    def token_bytes(self) -> tuple[np.ndarray, np.ndarray]:
        """The bytes of every token: (flat uint8 [N], offsets int32 [V + 1]).

        Token `i` is `flat[offsets[i]:offsets[i + 1]]`. Special tokens and unused ids have no bytes.
        Byte-level vocabularies are read through GPT-2's byte table, others the SentencePiece way
        (U+2581 is a space, `<0x0A>` is a byte).
        """
        added = self.backend.get_added_tokens_decoder()
        decoder = repr(self.backend.decoder) + repr(self.backend.pre_tokenizer)
        read = _byte_level_bytes if "ByteLevel" in decoder else _sentencepiece_bytes
        table = [b""] * self.vocab_size
        for token, i in self.backend.get_vocab(with_added_tokens=True).items():
            if i in added:
                table[i] = b"" if added[i].special else added[i].content.encode()
            else:
                table[i] = read(token)
        offsets = np.cumsum([0] + [len(b) for b in table], dtype=np.int32)
        return np.frombuffer(b"".join(table), np.uint8), offsets


def _create(spec, chat_template, bos_token, eos_token, pad_token, eos_ids) -> Tokenizer:
    post_processor = spec.get("post_processor")
    plain = spec | {"post_processor": None, "truncation": None, "padding": None}
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(plain))
    except Exception as error:  # the Rust library raises nothing more specific
        raise ValueError(f"it does not describe a tokenizer: {error}") from None
    for role, token in (("bos", bos_token), ("eos", eos_token), ("pad", pad_token)):
        if token is not None and backend.token_to_id(token) is None:
            raise ValueError(f"the {role} token {token!r} is not in the vocabulary")
    eos = [] if eos_token is None else [backend.token_to_id(eos_token)]
    eos_ids = tuple(dict.fromkeys([*eos, *(int(i) for i in eos_ids)]))
    pad_id = (eos_ids or (0,))[0] if pad_token is None else backend.token_to_id(pad_token)
    return Tokenizer(backend, chat_template, bos_token, eos_token, pad_token, eos_ids, pad_id, post_processor)


def _convert(folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `tokenizer.json` and `tokenizer_config.json` would hold if the folder had them, by `transformers`."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that torch is missing
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ValueError(
            f"{folder} has no tokenizer.json, and its other kind of tokenizer is converted by transformers; "
            "run pip install 'nlrl_jax[hub]'"
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        spec = json.loads(tokenizer.backend_tokenizer.to_str())
    except Exception as error:  # anything: each kind of tokenizer has a converter of its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"transformers cannot convert the tokenizer in {folder}: {reason} (pip install 'nlrl_jax[hub]' brings the "
            "packages it may need)"
        ) from None
    named = ("bos_token", "eos_token", "pad_token", "chat_template")
    return spec, {name: getattr(tokenizer, name) for name in named}


@functools.lru_cache(maxsize=64)
def _jinja(source: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    def tojson(value, indent=None):
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    environment.filters["tojson"] = tojson
    return environment.from_string(source)


def _default_template(value) -> str | None:
    """`chat_template` is a string, or a list (or dict) of named templates of which "default" counts."""
    if isinstance(value, list):
        value = {entry["name"]: entry["template"] for entry in value}
    return value.get("default") if isinstance(value, dict) else value


def _token_text(value) -> str | None:
    """A special token is written as a string or as a dict with the key "content"."""
    return value["content"] if isinstance(value, dict) else value


@functools.lru_cache(maxsize=1)
def byte_table() -> dict[int, str]:
    """GPT-2's bijection from bytes to printable characters: printable bytes stand for themselves,
    the other 68 are counted up from U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in table)
    return table | {byte: chr(0x100 + n) for n, byte in enumerate(others)}


@functools.lru_cache(maxsize=1)
def _byte_of() -> dict[str, int]:
    return {character: byte for byte, character in byte_table().items()}


def _byte_level_bytes(token: str) -> bytes:
    table = _byte_of()
    if all(character in table for character in token):
        return bytes(table[character] for character in token)
    return token.encode()


def _sentencepiece_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("\u2581", " ").encode()


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _write_json(path: pathlib.Path, value) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
