#!/usr/bin/env bash
# NO_PROXY with networks, as curl (7.86 and later) and Go read it, and httpx 0.28.1 (which the OpenAI and Anthropic
# clients and the Hugging Face Hub's are built on).
#
# One would guess: NO_PROXY=10.0.0.0/8 keeps 10.1.2.3 from the proxy, as with curl and requests; NO_PROXY=::1/128 does
# so for [::1], and is at worst ignored.
# What happens: httpx reads an IPv4 network as its first address alone, so 10.1.2.3 goes to the proxy without a word;
# with any IPv6 network in NO_PROXY no client can be made at all: httpx.Client() raises InvalidURL "Invalid port: ':1'",
# even where no proxy is set. requests keeps 10.1.2.3 from the proxy and is not stopped by ::1/128.
# Seen with httpx 0.28.1, requests 2.32.5, Python 3.11.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q httpx==0.28.1 requests==2.32.5
cat > "$folder/look.py" <<'PY'
import os

import httpx
import requests

for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
    del os.environ[name]
os.environ["NO_PROXY"] = "::1/128"
try:
    httpx.Client()
    said = "a client"
except httpx.InvalidURL as error:
    said = f"InvalidURL: {error}"
print("httpx.Client() with NO_PROXY=::1/128 and no proxy:", said)
print("requests with the same:", "a session" if requests.Session().get_adapter("http://[::1]:8000/") else "none")

os.environ |= {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "10.0.0.0/8"}
by_requests = requests.utils.get_environ_proxies("http://10.1.2.3/")
with httpx.Client() as client:
    transport = client._transport_for_url(httpx.URL("http://10.1.2.3/"))
    by_httpx = "a proxy" if "Proxy" in type(transport._pool).__name__ else "no proxy"
print("10.1.2.3 with NO_PROXY=10.0.0.0/8: requests takes", by_requests or "no proxy", "and httpx takes", by_httpx)
raise SystemExit(not (said.startswith("InvalidURL") and by_requests == {} and by_httpx == "a proxy"))
PY
"$folder/venv/bin/python" "$folder/look.py"
