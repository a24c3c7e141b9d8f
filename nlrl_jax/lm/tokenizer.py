"""A tokenizer, its chat template and its vocabulary as bytes.

Wraps a `tokenizers.Tokenizer` (the Rust library that also runs inside `transformers`) and renders chat templates with
jinja2. `transformers` is imported only to convert folders that `tokenizer_files.py` cannot read, torch never.

    tokenizer = Tokenizer.from_pretrained("models/Qwen2.5-3B-Instruct")
    ids = tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": "Hello"}]))

`encode` never adds special tokens; one that is written in the text is recognised, but in the content of messages it is
letters (`as_content`). The text after a chat template is therefore the whole truth about the ids.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from nlrl_jax.lm.borders import PLACE, Borders
from nlrl_jax.lm.chat_roles import rendered
from nlrl_jax.lm.chat_template import ChatRenderer, TemplateOptions
from nlrl_jax.lm.control_tokens import MARK, ControlTokens
from nlrl_jax.lm.spelling import byte_level_bytes, sentencepiece_bytes, without_blanks
from nlrl_jax.lm.thoughts import without_thought
from nlrl_jax.lm.tokenizer_files import TokenizerFiles, build_backend, read_token_ids, read_tokenizer

_ROLES = ("bos", "eos", "pad")
_NO_END = "the tokenizer names no end-of-sequence token, so a reply could never end"


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
    """Text to token ids and back.

    Attributes:
      backend: the Rust tokenizer, without post-processor, truncation and padding (`create` sees to that).
      chat_template: jinja2 source, or None for a base model.
      bos_token, eos_token, pad_token: as the chat template sees them; None where the model has none.
      other_tokens: name -> text of further special tokens that the chat template sees, such as "unk_token".
      eos_ids: every id that ends a reply; the first is the one that is learned.
      pad_id: id to pad with. Never infer a mask from it: for several models it is also an eos id.
      bos_id: id of the beginning of a text; None where the model has none.
      post_processor: the post-processor's JSON, for `save_pretrained` and `adds_bos`; `encode` adds nothing.
      clean_up: decoding deletes the blanks before punctuation, for vocabularies of words.
      read_as: id -> the id whose text it has, None where it has none, for ids that do not stand for their own text.
      options: what the chat template is given besides the chat.
    """

    backend: tokenizers.Tokenizer = dataclasses.field(repr=False)
    chat_template: str | None = dataclasses.field(default=None, repr=False)
    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    other_tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)
    eos_ids: tuple[int, ...] = ()
    pad_id: int = 0
    bos_id: int | None = None
    post_processor: Mapping[str, Any] | None = None
    clean_up: bool = False
    read_as: Mapping[int, int | None] = dataclasses.field(default_factory=dict, repr=False)
    options: TemplateOptions = TemplateOptions()

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
        named = {"bos_token": bos_token, "eos_token": eos_token, "pad_token": pad_token}
        special = {name: token for name, token in named.items() if token is not None}
        files = TokenizerFiles(build_backend(spec), spec.get("post_processor"), special, chat_template, clean_up=False)
        return Tokenizer.of_files(files, {"bos": (), "eos": tuple(map(int, eos_ids)), "pad": ()})

    @staticmethod
    def from_pretrained(folder: str | pathlib.Path) -> Tokenizer:
        """Reads a Hugging Face model folder as `transformers` 5 does; `lm/tokenizer_files.py` says what counts where.

        A reply ends at the tokenizer's eos token and at the ids that `generation_config.json` names, or `config.json`
        where that names none. Some folders are converted by `transformers` (extra `hub`).

        Raises:
          FileNotFoundError: there is no tokenizer in `folder`.
          ValueError: a file is damaged or cannot be converted.
        """
        folder = pathlib.Path(folder)
        return Tokenizer.of_files(read_tokenizer(folder), read_token_ids(folder))

    @staticmethod
    def of_files(files: TokenizerFiles, named_ids: Mapping[str, tuple[int, ...]]) -> Tokenizer:
        """A tokenizer of what a folder or file says of it; `named_ids`: "bos", "eos" and "pad" by number.

        Raises:
          ValueError: a named special token is not in the vocabulary.
        """
        ids, special = {}, dict(files.special_tokens)
        tokens = {f"{role}_token": special.pop(f"{role}_token", None) for role in _ROLES}
        for role, token in zip(_ROLES, tokens.values(), strict=True):
            token_ids = [] if token is None else [files.backend.token_to_id(token)]
            if None in token_ids:
                raise ValueError(f"the {role} token {token!r} is not in the vocabulary")
            ids[role] = tuple(dict.fromkeys([*token_ids, *named_ids[role]]))
        return Tokenizer(
            files.backend,
            files.chat_template,
            **tokens,
            other_tokens=special,
            eos_ids=ids["eos"],
            pad_id=(ids["pad"] or ids["eos"] or (0,))[0],
            bos_id=ids["bos"][0] if ids["bos"] else None,
            post_processor=files.post_processor,
            clean_up=files.clean_up,
        )

    @property
    def special_tokens(self) -> dict[str, str]:
        """name, such as "bos_token" -> text, of all special tokens that have a name."""
        named = {f"{role}_token": getattr(self, f"{role}_token") for role in _ROLES}
        return {**{name: text for name, text in named.items() if text is not None}, **self.other_tokens}

    @functools.cached_property
    def adds_bos(self) -> bool:
        """Whether a text begins with the bos for all who read these files, such as a server."""
        if self.bos_token is None or self.post_processor is None:
            return False
        # The post-processor alone, around a vocabulary of one word: does it put the bos in front?
        small = json.loads(tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, "x")).to_str())
        whole = tokenizers.Tokenizer.from_str(json.dumps({**small, "post_processor": self.post_processor}))
        return whole.encode("x").tokens[:1] == [self.bos_token]

    @property
    def end_id(self) -> int:
        """The id that ends a reply and is learned. ValueError: there is none."""
        if not self.eos_ids:
            raise ValueError(_NO_END)
        return self.eos_ids[0]

    def check_fits(self, vocab_size: int) -> None:
        """Raises ValueError: a model of this vocabulary lacks some of the tokens, or no token ends a reply."""
        if self.vocab_size > vocab_size:
            raise ValueError(
                f"the tokenizer has {self.vocab_size} tokens but the model's vocabulary is {vocab_size}: "
                "they do not belong together"
            )
        if not self.eos_ids:
            raise ValueError(_NO_END)

    def with_template(self, options: TemplateOptions) -> Tokenizer:
        """The same tokenizer, its chat template given other variables or another date.

        Raises:
          ValueError: there is no chat template, or it does not read a variable.
        """
        if options.variables() and not options.shared:
            if self.chat_template is None:
                raise ValueError("--template sets variables, but the model has no chat template; leave it out")
            options.check_read([self.chat_template], "the model's chat template")
        return dataclasses.replace(self, options=options)

    @property
    def token_ids(self) -> dict[str, Any]:
        """The ids as config.json and generation_config.json hold them."""
        pad = None if self.pad_token is None else self.pad_id
        eos = list(self.eos_ids) if len(self.eos_ids) > 1 else self.eos_ids[0] if self.eos_ids else None
        return {"bos_token_id": self.bos_id, "eos_token_id": eos, "pad_token_id": pad}

    def save_pretrained(self, folder: str | pathlib.Path) -> None:
        """Writes what `from_pretrained` and `transformers` read."""
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        spec = json.loads(self.backend.to_str()) | {"post_processor": self.post_processor}
        unnamed = dict.fromkeys(f"{role}_token" for role in (*_ROLES, "unk"))  # or a class brings its own
        config: dict[str, Any] = {**unnamed, **self.special_tokens, "tokenizer_class": "PreTrainedTokenizerFast"}
        if self.clean_up:
            config["clean_up_tokenization_spaces"] = True
            config["clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"] = True
        if self.backend.encode_special_tokens:
            config["split_special_tokens"] = True
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template
        _write_json(folder / "tokenizer.json", spec)
        _write_json(folder / "tokenizer_config.json", config)
        _write_json(folder / "generation_config.json", {**self.token_ids, "eos_token_id": list(self.eos_ids)})

    def encode(self, text: str, continues: bool = False) -> list[int]:
        """Token ids of `text`; nothing is added. What `as_content` has marked is letters.

        Args:
          continues: another text stands before it, which has been encoded: a tokenizer that puts a space before a text
            (SentencePiece) leaves it out.
        """
        if continues and self._borders.prefix_space:
            return self.encode(PLACE + text)[len(self.encode(PLACE)) :] if text else []
        marked = MARK in text
        return self._control_tokens.encode(text) if marked else self.backend.encode(text, add_special_tokens=False).ids

    def as_content(self, text: str) -> str:
        """A text that is not the template's, such as a game's: `encode` spells special tokens in it by letters."""
        return self._control_tokens.marked(text)

    @functools.cached_property
    def _control_tokens(self) -> ControlTokens:
        return ControlTokens(self.backend)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True, continues: bool = False) -> str:
        """Text of token ids; bytes that are not UTF-8 become U+FFFD.

        continues: another text stands before it, so that a space at its beginning is not left out (see `encode`).
        """
        ids = [known_id for i in ids if (known_id := self.read_as.get(int(i), int(i))) is not None]
        before = self._borders.space_left_out if continues else []
        text = self.backend.decode([*before, *ids], skip_special_tokens=skip_special_tokens)
        return without_blanks(text) if self.clean_up else text

    def spelled(self, text: str) -> bytes:
        """The bytes of `text`'s tokens: the text as the normalizer leaves it, special tokens left out."""
        flat, offsets = self.token_bytes
        return b"".join(flat[offsets[i] : offsets[i + 1]].tobytes() for i in self.encode(text))

    @functools.cached_property
    def _borders(self) -> Borders:
        return Borders(self.backend)

    @property
    def adds_space(self) -> bool:
        """Whether it puts a space before a text, so that one that continues another has other ids (`encode`)."""
        return bool(self._borders.prefix_space)

    def puts_space_after(self, tokens: Sequence[int]) -> bool:
        """Whether a text behind these tokens is encoded as one that begins: a space is put after added tokens too."""
        return bool(tokens) and self._borders.prefix_space == "always" and self._borders.is_added(tokens[-1])

    @property
    def border_problem(self) -> str:
        """Why `borders` are those of pre-tokens alone; "" where they are not."""
        return self._borders.problem

    def words(self, text: str) -> list[tuple[int, int, list[int]]]:
        """The pre-tokens of `text` as (first character, one past the last, token ids).

        Merges never cross from one to the next. A special token is a pre-token of its own.
        """
        return self._borders.words(text)

    def pre_token_borders(self, text: str) -> set[int]:
        """Character positions of `text` between its pre-tokens; 0 and `len(text)` are among them."""
        return self._borders.of_pre_tokens(text)

    def borders(self, text: str, is_cut_short: bool = False) -> set[int]:
        """Character positions of `text` that no merge can cross: the parts between them have the ids of the whole.

        The first part is encoded by `encode`, the others as what `continues` it. 0 and `len(text)` are among them.

        Args:
          is_cut_short: `text` is the beginning of one that is not known further.
        """
        return self._borders.safe(text, is_cut_short)

    def spanning_token(self, text: str, position: int, is_cut_short: bool = False) -> str | None:
        """A token, as the vocabulary writes it, that occurs in `text` across a position; None where there is none."""
        return self._borders.spanning(text, position, is_cut_short)

    def render_chat(
        self, chat: Sequence[Mapping[str, str]], add_generation_prompt: bool = True, thinks: bool = True
    ) -> str:
        """The chat as the model's one text.

        Args:
          chat: messages `{"role": ..., "content": ...}`. Special tokens in a content are marked (`as_content`).
          add_generation_prompt: whether to open the assistant's turn at the end. If the last message is the
            assistant's, it is left open: its content follows the opened turn, after a thought, unchanged. Without a
            chat template such a chat is the contents of its messages as they are, an empty line between them, behind
            the bos where the model's texts begin with one (`adds_bos`).
            What a template without a system role (Gemma, Mistral) refuses stands before the user's first message.
          thinks: False closes a thought that the template opens for the reply, as the template does without thoughts.

        Raises:
          ValueError: there is no chat template and no open message, or the template refuses the chat.
        """
        if add_generation_prompt and chat and chat[-1]["role"] == "assistant":
            if self.chat_template is None:
                beginning = self.bos_token if self.adds_bos else ""
                return beginning + "\n\n".join(message["content"] for message in chat)
            # Templates close an assistant's message; this one is to be continued.
            return self.render_chat(chat[:-1], thinks=False) + self.as_content(chat[-1]["content"])

        def render(**variables):
            return rendered(lambda messages: self.renderer(messages, add_generation_prompt, **variables), chat)

        return render() if thinks else without_thought(render)

    @functools.cached_property
    def renderer(self) -> ChatRenderer:
        """The chat template with all that it is given besides the chat. ValueError: there is none."""
        if self.chat_template is None:
            raise ValueError("this tokenizer has no chat template; use an instruct model's, or pass chat_template=")
        return ChatRenderer(self.chat_template, self.special_tokens, self.options, self.as_content)

    @functools.cached_property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included (the largest id plus one)."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    @functools.cached_property
    def token_bytes(self) -> tuple[np.ndarray, np.ndarray]:
        """The bytes of every token: (flat uint8 [N], offsets int32 [V + 1]).

        Token `i` is `flat[offsets[i]:offsets[i + 1]]`. Special tokens and unused ids have no bytes.
        Byte-level vocabularies are read through GPT-2's byte table, others the SentencePiece way
        (U+2581 is a space, `<0x0A>` is a byte).
        """
        added = self.backend.get_added_tokens_decoder()
        decoder = repr(self.backend.decoder) + repr(self.backend.pre_tokenizer)
        to_bytes = byte_level_bytes if "ByteLevel" in decoder else sentencepiece_bytes
        table = [b""] * self.vocab_size
        for token, i in self.backend.get_vocab(with_added_tokens=True).items():
            if i in added:
                table[i] = b"" if added[i].special else added[i].content.encode()
            else:
                table[i] = to_bytes(token)
        for i, canonical in self.read_as.items():
            table[i] = b"" if canonical is None else table[canonical]
        # One flat array and offsets, so that a program on the device can read the bytes of any token.
        offsets = np.cumsum([0] + [len(b) for b in table], dtype=np.int32)
        return np.frombuffer(b"".join(table), np.uint8), offsets


def _write_json(path: pathlib.Path, value) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
