#!/usr/bin/env bash
# add_bos_token in tokenizer_config.json, read by transformers 5.23.0 and by gguf 0.19.0 (llama.cpp's converter).
#
# One would guess: "add_bos_token": true makes the tokenizer put the bos before a text, false keeps it from doing so (as
# for Llama's tokenizers in transformers 4), and tokenizer.add_bos_token tells which of the two holds.
# What happens: transformers 5 ignores the entry wherever there is a tokenizer.json: only that file's post-processor
# counts, whatever the entry says and whatever class is named; and tokenizer.add_bos_token is False even while a bos is
# added. llama.cpp's converter lets the entry win. So the same folder, served by vLLM and converted for llama.cpp, has a
# bos in one and none in the other, or two where a chat template writes one as well.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q transformers==5.23.0 gguf==0.19.0
cat > "$folder/look.py" <<'PY'
import json
import logging
import pathlib
import sys

import tokenizers
from gguf.vocab import SpecialVocab
from tokenizers import models, pre_tokenizers, processors
from transformers import AutoTokenizer

logging.disable(logging.WARNING)
seen = []
for entry in (True, False):
    for adds in (True, False):
        folder = pathlib.Path(sys.argv[1]) / f"{entry}_{adds}"
        folder.mkdir()
        backend = tokenizers.Tokenizer(models.BPE({"<s>": 0, "</s>": 1, "a": 2}, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.add_special_tokens(["<s>", "</s>"])
        if adds:
            backend.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 0)])
        backend.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": entry}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "config.json").write_text('{"model_type": "llama"}')
        tokenizer = AutoTokenizer.from_pretrained(folder)
        ids, converted = tokenizer("a").input_ids, SpecialVocab(folder).add_special_token.get("bos")
        print(f"add_bos_token {entry}, post-processor with bos {adds}: transformers {ids}, its add_bos_token "
              f"{tokenizer.add_bos_token}; the converter's {converted}")
        seen.append((ids == [0, 2], tokenizer.add_bos_token, converted))
raise SystemExit(seen != [(adds, False, entry) for entry in (True, False) for adds in (True, False)])
PY
"$folder/venv/bin/python" "$folder/look.py" "$folder"
