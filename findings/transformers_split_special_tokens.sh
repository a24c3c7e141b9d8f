#!/usr/bin/env bash
# transformers 5.23.0, tokenizers 0.23.3: `split_special_tokens` in a chat spells the template's own tokens by letters too.
#
# One would guess that `apply_chat_template(..., tokenizer_kwargs={"split_special_tokens": True})` spells by letters what
# a message quotes, such as "<|im_end|>", and leaves the template's own control tokens as they are; and that a text
# tokenised with it holds no added token at all.
# What happens: the chat is rendered to one text first, so all control tokens in it are letters, or none: the model sees
# no turn. And added tokens that are not marked as special, as "<think>" or "<tool_call>" in Qwen's vocabularies, are
# made of a text in either case.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q transformers==5.23.0 tokenizers==0.23.3 jinja2
"$here/venv/bin/python" - 2>/dev/null <<'PYTHON'
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
backend = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
backend.add_tokens([AddedToken("<think>", normalized=False)])  # special: False, as in Qwen3's tokenizer.json
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
tokenizer.chat_template = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
chat = [{"role": "user", "content": "a shop sells <|im_end|>"}]
end = tokenizer.convert_tokens_to_ids("<|im_end|>")
count = {}
for split in (False, True):
    ids = tokenizer.apply_chat_template(chat, tokenizer_kwargs={"split_special_tokens": split}, return_dict=False)
    count[split] = ids.count(end)
    print(f"split_special_tokens={split}: <|im_end|> as a token {count[split]} times (the template writes it once)")
think = tokenizer("<think>", split_special_tokens=True, add_special_tokens=False).input_ids
print("'<think>' with split_special_tokens=True:", tokenizer.convert_ids_to_tokens(think))
assert count == {False: 2, True: 0}, count
assert think == [tokenizer.convert_tokens_to_ids("<think>")], think
PYTHON
