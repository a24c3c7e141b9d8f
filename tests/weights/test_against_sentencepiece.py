"""Mistral's published vocabularies as GGUF files, against the package sentencepiece live.

They lie in the wheel of mistral-common; with SentencePiece's own file format in between, no vocabulary is ours.
"""

import random

import gguf as reference
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.text.compile import compile_template, sample_fields
from nlrl_jax.text.pieces import assemble
from nlrl_jax.weights.gguf_tokenizer import tokenizer_from_gguf
from tests.tokenizers_from_wheels import wheel_file

pytestmark = pytest.mark.sentencepiece
FILES = (
    "tokenizer.model.v1",
    "mistral_instruct_tokenizer_240216.model.v2",
    "mistral_instruct_tokenizer_240323.model.v3",
)
STRINGS = "the Position Goal: (3, 2) [1] || </action> <plan> isn't café Übergrößen 日本語 한국어 🙂 🜁 ∑ ²".split()
STRINGS += ["  ", "     ", " " * 17, " " * 40, "\n", "\n\n\n", "\t", "\r\n", "12345", "0.5", "\x00", "\u2581", "<0x0A>"]


@pytest.fixture(scope="module", params=FILES)
def both(request, tmp_path_factory):
    """(SentencePiece's processor, our tokenizer of a GGUF file with the same vocabulary)."""
    sentencepiece = pytest.importorskip("sentencepiece")
    theirs = sentencepiece.SentencePieceProcessor(str(wheel_file("mistral_common", f"data/{request.param}")))
    types, rows = {"unknown": 2, "control": 3, "unused": 5, "byte": 6}, range(theirs.get_piece_size())
    path = tmp_path_factory.mktemp("vocabulary") / "model.gguf"
    writer = reference.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([theirs.id_to_piece(i) for i in rows])
    writer.add_token_scores([theirs.get_score(i) for i in rows])
    writer.add_token_types([
        next((number for kind, number in types.items() if getattr(theirs, f"is_{kind}")(i)), 1) for i in rows
    ])  # fmt: skip
    writer.add_bos_token_id(theirs.bos_id())
    writer.add_eos_token_id(theirs.eos_id())
    writer.add_unk_token_id(theirs.unk_id())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return theirs, tokenizer_from_gguf(path)


def test_a_thousand_texts_have_its_ids(both):
    theirs, ours = both
    rng = random.Random(0)
    for _ in range(1000):
        text = "".join(rng.choice(STRINGS) + rng.choice(["", " ", "  "]) for _ in range(rng.randint(1, 12)))
        ids = theirs.encode(text)
        assert ours.encode(text) == ids, text
        borders = sorted(ours.borders(text))
        parts = [text[start:end] for start, end in zip(borders, borders[1:])]
        assert [i for n, part in enumerate(parts) for i in ours.encode(part, continues=n > 0)] == ids, text


@pytest.mark.parametrize(("game", "size"), [("frozen_lake", 8), ("snake", 7), ("babyai", None)])
def test_games_compile(both, game, size):
    theirs, ours = both
    observation = envs.make(game, **({"size": size} if size else {})).observation
    template = "[Game State]\n" + observation + "\nReply:"
    compiled = compile_template(template, ours)
    for fields in sample_fields(template, 100, seed=1):
        tokens, length = assemble(np, compiled.program, fields, ours.pad_id)
        assert [*compiled.prefix, *tokens[:length]] == theirs.encode(template.render(fields))
