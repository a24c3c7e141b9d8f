"""A local model served on loopback, as vLLM would serve it."""

from __future__ import annotations

import dataclasses
import threading

import jax
import numpy as np

from nlrl_jax.backends.local import LocalModel
from nlrl_jax.lm.score import score
from nlrl_jax.types import Chat, Reply, Sampling
from tests.backends import server as s
from tests.backends.server import Behaviour

_score = jax.jit(score, static_argnums=0)


def serves(model: LocalModel, length: int = 128) -> Behaviour:
    """Answers /chat/completions, continuing the last message if asked to, and /completions, with echo or without.

    Args:
      length: maximum tokens of a prompt that is echoed.
    """
    tokenizer, lock = model.tokenizer, threading.Lock()
    # Without a template an open message is the whole prompt.
    raw = dataclasses.replace(model, tokenizer=dataclasses.replace(tokenizer, chat_template=None))

    def write(chosen: LocalModel, messages, body) -> Reply:
        sampling = Sampling(*(body.get(name, 0) for name in ("max_tokens", "temperature", "top_k")), body["top_p"])
        chat = Chat(tuple(messages))
        assert chat.is_open == (chosen is raw or body.get("continue_final_message", False))
        return chosen.complete([chat], sampling, "served", body.get("seed", 0), body.get("stop", ()))[0]

    def echo(prompt: str) -> tuple[dict, int]:
        ids = tokenizer.encode(prompt)
        rest = np.array([ids[1:] + [0] * (length - len(ids))])
        log_probs = _score(model.model, model.variables, np.array([ids[:1]]), np.array([1]), rest)[0]
        tokens = [tokenizer.decode([i], skip_special_tokens=False) for i in ids]
        logprobs = {"tokens": tokens, "token_logprobs": [None, *map(float, log_probs[: len(ids) - 1])]}
        return {"index": 0, "text": prompt, "logprobs": logprobs, "finish_reason": "length"}, len(ids)

    def behave(handler, request):
        body, read, written = request.body, 0, 0
        with lock:
            if body.get("echo"):
                choice, read = echo(body["prompt"])
            else:
                chat = request.path.endswith("/chat/completions")
                messages = body["messages"] if chat else [{"role": "assistant", "content": body["prompt"]}]
                reply = write(model if chat else raw, messages, body)
                text = {"message": {"role": "assistant", "content": reply.text}} if chat else {"text": reply.text}
                choice = {"index": 0, **text, "finish_reason": "stop" if reply.ended else "length"}
                read, written = reply.prompt_tokens, reply.tokens
        s.send(handler, {"choices": [choice], "usage": {"prompt_tokens": read, "completion_tokens": written}})

    return behave
