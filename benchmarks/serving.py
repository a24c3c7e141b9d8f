"""Replies per second of the server at 1 and more concurrent requests, beside direct calls of its model.

    python -m benchmarks.serving                      # the nano model
    python -m benchmarks.serving --model smollm2 --requests 16 --tokens 48 --repeats 3

Direct: `LocalModel.complete` with as many chats at once as there are concurrent requests. The server runs in a process
of its own, as `nlrl-jax serve` starts it, and its client in this one. All are compiled first and take turns; replies
are greedy and have the same tokens.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from benchmarks.timing import ROOT, in_turns, machine, medians, parser_of, print_head, print_row
from nlrl_jax.run import local_models
from nlrl_jax.types import Chat, Sampling

CONCURRENT = (1, 8)


def main():
    parser = parser_of(__doc__, model="nano", requests=64, tokens=32, repeats=5)
    args = parser.parse_args()
    model = local_models.local_model(args.model, cache_mb=1000)
    sampling = Sampling(args.tokens, 0.0)
    questions = [f"Count from {n} to {n + 20}, one number a line." for n in range(args.requests)]

    def direct(together: int, repeat: int) -> tuple[float, int]:
        chats = [Chat.of(f"{repeat}. {question}") for question in questions]
        start, tokens = time.perf_counter(), 0
        for first in range(0, len(chats), together):
            tokens += sum(reply.tokens for reply in model.complete(chats[first : first + together], sampling, "r"))
        return time.perf_counter() - start, tokens

    command = [sys.executable, "-m", "nlrl_jax.launch.serve", f"--model={args.model}", "--port=0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        url = next(word for word in iter(child.stdout.readline, "").__next__().split() if word.startswith("http"))
        client = httpx.Client(base_url=url.rstrip(";"), timeout=600, trust_env=False)

        def ask(text: str) -> int:
            body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": args.tokens}
            answer = client.post("chat/completions", json=body).raise_for_status()
            return answer.json()["usage"]["completion_tokens"]

        def served(together: int, repeat: int) -> tuple[float, int]:
            start = time.perf_counter()
            with ThreadPoolExecutor(together) as pool:
                tokens = sum(pool.map(ask, [f"{repeat}. {question}" for question in questions]))
            return time.perf_counter() - start, tokens

        subjects = {
            (name, together): lambda repeat, run=run, together=together: run(together, repeat)
            for together in CONCURRENT
            for name, run in (("direct", direct), ("served", served))
        }
        in_turns(subjects, 1)  # compiles
        results = in_turns(
            {name: lambda repeat, run=run: run(repeat + 1) for name, run in subjects.items()}, args.repeats
        )
        child.terminate()
        child.stdout.read()  # its last line
    seconds = medians({name: [result[0] for result in rows] for name, rows in results.items()})
    print(f"{args.model}, {args.requests} replies of {args.tokens} tokens at most; {machine('starlette', 'uvicorn')}\n")
    print_head("concurrent", "direct, replies a second", "served", "served / direct")
    for together in CONCURRENT:
        rates = [args.requests / seconds[name, together] for name in ("direct", "served")]
        assert results["direct", together][0][1] == results["served", together][0][1], "different replies"
        print_row(together, *(f"{rate:.2f}" for rate in rates), f"{rates[1] / rates[0]:.2f}")


if __name__ == "__main__":
    main()
