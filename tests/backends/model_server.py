"""A local model served on loopback as vLLM would serve it, or as servers do that only list likely tokens."""

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

WORDS = ("GOOD", "BAD", "UNKNOWN")  # whose probabilities it lists
_score = jax.jit(score, static_argnums=0)


def serves(model: LocalModel, length: int = 128, echoes: bool = True) -> Behaviour:
    """Answers /chat/completions, continuing the last message if asked to, and /completions, with echo or without.

    Args:
      length: maximum tokens of a prompt that is echoed.
      echoes: False: it refuses to, and lists likeliest tokens instead.
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

    def listed(chosen: LocalModel, messages, reply: Reply, top: int, chat: bool) -> dict:
        """The log-probabilities of a reply's tokens, and of the likeliest first ones."""
        words = [f" {word}" for word in WORDS]
        (scores,) = chosen.score([Chat(tuple(messages))], [words], "served")
        likeliest = sorted(zip(words, (score.log_prob for score in scores)), key=lambda pair: -pair[1])[:top]
        (whole,) = chosen.score([Chat(tuple(messages))], [[reply.text]], "served")[0]
        if not chat:
            return {"tokens": [reply.text], "token_logprobs": [whole.log_prob], "top_logprobs": [dict(likeliest)]}
        as_json = [{"token": token, "logprob": log_prob} for token, log_prob in likeliest]
        return {"content": [{"token": reply.text, "logprob": whole.log_prob, "top_logprobs": as_json}]}

    def behave(handler, request):
        body, read, written = request.body, 0, 0
        if body.get("echo") and not echoes:
            return s.send(handler, b'{"error": "Only no echo is supported"}', 400)
        with lock:
            if body.get("echo"):
                choice, read = echo(body["prompt"])
            else:
                chat = request.path.endswith("/chat/completions")
                messages = body["messages"] if chat else [{"role": "assistant", "content": body["prompt"]}]
                reply = write(model if chat else raw, messages, body)
                text = {"message": {"role": "assistant", "content": reply.text}} if chat else {"text": reply.text}
                choice = {"index": 0, **text, "finish_reason": "stop" if reply.ended else "length"}
                if body.get("logprobs"):
                    top = body.get("top_logprobs", body["logprobs"])
                    choice["logprobs"] = listed(model if chat else raw, messages, reply, top, chat)
                read, written = reply.prompt_tokens, reply.tokens
        s.send(handler, {"choices": [choice], "usage": {"prompt_tokens": read, "completion_tokens": written}})

    return behave
