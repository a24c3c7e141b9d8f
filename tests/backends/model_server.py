"""A local model served on loopback by a server that only lists likely tokens; `tests.run.serving.running` has ours."""

from __future__ import annotations

import dataclasses
import threading

from nlrl_jax.backends.local import LocalModel
from nlrl_jax.types import Chat, Reply, Sampling
from tests.backends import server as s
from tests.backends.server import Behaviour

WORDS = ("GOOD", "BAD", "UNKNOWN")  # whose probabilities it lists


def lists_words(model: LocalModel) -> Behaviour:
    """Answers /chat/completions, continuing the last message if asked to, and /completions, without echo."""
    lock = threading.Lock()
    # Without a template an open message is the whole prompt.
    raw = dataclasses.replace(model, tokenizer=dataclasses.replace(model.tokenizer, chat_template=None))

    def write(chosen: LocalModel, messages, body) -> Reply:
        sampling = Sampling(*(body.get(name, 0) for name in ("max_tokens", "temperature", "top_k")), body["top_p"])
        chat = Chat(tuple(messages))
        assert chat.is_open == (chosen is raw or body.get("continue_final_message", False))
        return chosen.complete([chat], sampling, "served", body.get("seed", 0), body.get("stop", ()))[0]

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
        body = request.body
        if body.get("echo"):
            return s.send(handler, b'{"error": "Only no echo is supported"}', 400)
        chat = request.path.endswith("/chat/completions")
        messages = body["messages"] if chat else [{"role": "assistant", "content": body["prompt"]}]
        with lock:
            reply = write(model if chat else raw, messages, body)
            text = {"message": {"role": "assistant", "content": reply.text}} if chat else {"text": reply.text}
            choice = {"index": 0, **text, "finish_reason": "stop" if reply.ended else "length"}
            if body.get("logprobs"):
                top = body.get("top_logprobs", body["logprobs"])
                choice["logprobs"] = listed(model if chat else raw, messages, reply, top, chat)
        usage = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.tokens}
        s.send(handler, {"choices": [choice], "usage": usage})

    return behave
