"""Requests of the OpenAI API as values: each field checked, with a sentence for what is wrong with it.

Fields that decide what is computed and are not implemented are refused unless they ask for nothing; others that are not
known here, such as `user` or `store`, are ignored.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from nlrl_jax.backends.engine import LISTED
from nlrl_jax.run.serving.errors import ApiError, wrong

MAX_CHOICES, MAX_STOPS = 128, 16  # of a request
# Field -> values that ask for nothing.
_NOT_IMPLEMENTED: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "suffix": ("",),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "tool_choice": ("none", "auto"),
    "prompt_logprobs": (0,),
    "structured_outputs": ({},),
    "ignore_eos": (False,),
}
_ROLES = ("system", "user", "assistant", "tool")


@dataclasses.dataclass(frozen=True)
class ReplyOptions:
    """How replies are written and returned.

    max_tokens: None where the request has no limit.
    top_listed: how many of the likeliest tokens are listed with each one; None: no log-probabilities at all.
    """

    max_tokens: int | None
    n: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop: tuple[str, ...]
    top_listed: int | None
    is_stream: bool
    includes_usage: bool


@dataclasses.dataclass(frozen=True)
class ChatRequest:
    """A request for replies to a chat.

    variables: of the chat template. is_open: the last message is continued. is_parallel: several calls in a reply.
    """

    options: ReplyOptions
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    variables: Mapping[str, Any]
    is_open: bool
    is_parallel: bool


@dataclasses.dataclass(frozen=True)
class TextRequest:
    """A request for continuations of texts, or of token ids. echoes: each answer begins with its prompt."""

    options: ReplyOptions
    prompts: tuple[str | tuple[int, ...], ...]
    echoes: bool
    adds_special_tokens: bool


class Fields:
    """The fields of a body; null is as good as missing."""

    def __init__(self, body: Mapping[str, Any]):
        self.body = body

    def get(self, name: str, kind: type | tuple[type, ...], default: Any, words: str) -> Any:
        """The value of a field. ApiError: it is of another kind than these words say."""
        value = self.body.get(name)
        if value is None:
            return default
        if not isinstance(value, kind) or isinstance(value, bool) and bool not in (kind, *_as_tuple(kind)):
            raise wrong(name, f"must be {words}")
        return value

    def number(
        self, name: str, default: Any, minimum: float, maximum: float = float("inf"), whole: bool = False
    ) -> Any:
        """A number within bounds."""
        words = "a whole number" if whole else "a number"
        value = self.get(name, int if whole else (int, float), default, words)
        if value is not None and not minimum <= value <= maximum:
            bounds = f"at least {minimum}" if maximum == float("inf") else f"from {minimum} to {maximum}"
            raise wrong(name, f"is {value}; it must be {words} {bounds}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        return self.get(name, bool, default, "true or false")


def read_chat(body: Mapping[str, Any]) -> ChatRequest:
    """The request of /chat/completions.

    Raises:
      ApiError: a field has a wrong value, or asks for what is not implemented.
    """
    fields = Fields(body)
    is_listed = fields.flag("logprobs")
    top = fields.number("top_logprobs", None, 0, LISTED, whole=True)
    if top is not None and not is_listed:
        raise wrong("top_logprobs", "needs logprobs to be true")
    options = _options(fields, (top or 0) if is_listed else None, default_tokens=None, min_tokens=1)
    messages = _messages(fields.get("messages", list, [], "a list of messages"))
    tools = _tools(fields.get("tools", list, [], "a list of tools"))
    variables = fields.get("chat_template_kwargs", dict, {}, "an object of template variables")
    is_open = fields.flag("continue_final_message")
    if is_open and fields.flag("add_generation_prompt"):
        raise wrong("continue_final_message", "cannot be true together with add_generation_prompt")
    if not is_open and not fields.flag("add_generation_prompt", True):
        raise wrong("add_generation_prompt", "must be true unless continue_final_message is")
    if is_open and messages[-1]["role"] != "assistant":
        raise wrong("continue_final_message", "needs a last message of the assistant")
    if is_open and tools:
        raise wrong("continue_final_message", "cannot be true together with tools")
    offered = () if body.get("tool_choice") == "none" else tools
    return ChatRequest(options, messages, offered, variables, is_open, fields.flag("parallel_tool_calls", True))


def read_text(body: Mapping[str, Any]) -> TextRequest:
    """The request of /completions. Errors: see `read_chat`."""
    fields = Fields(body)
    echoes = fields.flag("echo")
    top = fields.number("logprobs", None, 0, LISTED, whole=True)
    options = _options(fields, top, default_tokens=16, min_tokens=0 if echoes else 1)
    if echoes and options.is_stream:
        raise wrong("echo", "cannot be streamed")
    prompt = fields.get("prompt", (str, list), None, "a text, a list of texts, or token ids")
    prompts = [prompt] if isinstance(prompt, str) or _is_ids(prompt) else prompt
    if not prompts or not all(isinstance(entry, str) or _is_ids(entry) for entry in prompts):
        raise wrong("prompt", "must be a text, a list of texts, or token ids, and not be empty")
    if len(prompts) * options.n > MAX_CHOICES:
        raise wrong("prompt", f"and n ask for {len(prompts) * options.n} replies; at most {MAX_CHOICES} are written")
    prompts = tuple(entry if isinstance(entry, str) else tuple(entry) for entry in prompts)
    return TextRequest(options, prompts, echoes, fields.flag("add_special_tokens", True))


def _options(fields: Fields, top: int | None, default_tokens: int | None, min_tokens: int) -> ReplyOptions:
    for name, harmless in _NOT_IMPLEMENTED.items():
        if fields.body.get(name) is not None and fields.body[name] not in harmless:
            raise wrong(name, f"is not implemented by this server; leave it out (it may be {json.dumps(harmless[0])})")
    n = fields.number("n", 1, 1, MAX_CHOICES, whole=True)
    if fields.body.get("best_of") not in (None, 1, n):
        raise wrong("best_of", "is not implemented by this server; leave it out")
    tokens = [fields.number(name, None, min_tokens, whole=True) for name in ("max_completion_tokens", "max_tokens")]
    stop = fields.get("stop", (str, list), [], "a text or a list of texts")
    stop = [stop] if isinstance(stop, str) else stop
    if len(stop) > MAX_STOPS or not all(isinstance(text, str) and text for text in stop):
        raise wrong("stop", f"must be a text or a list of at most {MAX_STOPS} texts, none of them empty")
    stream_options = fields.get("stream_options", dict, {}, "an object")
    return ReplyOptions(
        max_tokens=next((number for number in tokens if number is not None), default_tokens),
        n=n,
        temperature=fields.number("temperature", 1.0, 0, 100),
        top_p=fields.number("top_p", 1.0, 0, 1) or 1e-9,  # 0: the likeliest token alone
        top_k=max(fields.number("top_k", 0, -1, 2**31 - 1, whole=True), 0),  # vLLM writes -1 for no limit
        seed=fields.get("seed", int, None, "a whole number"),
        stop=tuple(stop),
        top_listed=top,
        is_stream=fields.flag("stream"),
        includes_usage=Fields(stream_options).flag("include_usage"),
    )


def _messages(messages: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    """Messages as chat templates read them: contents are texts, arguments of calls are objects."""
    if not messages:
        raise wrong("messages", "must be a list of at least one message")
    parsed, tool_names = [], {}
    for place, message in enumerate(messages):
        param = f"messages[{place}]"
        if not isinstance(message, dict):
            raise wrong(param, "must be an object")
        role = "system" if message.get("role") == "developer" else message.get("role")
        if role not in _ROLES:
            raise wrong(f"{param}.role", f"must be one of {', '.join(_ROLES)}")
        fields = {name: value for name, value in message.items() if value is not None}
        fields |= {"role": role, "content": _content(message.get("content"), param)}
        if calls := fields.pop("tool_calls", None):
            fields["tool_calls"] = _calls(calls, f"{param}.tool_calls")
            tool_names |= {call["id"]: call["function"]["name"] for call in fields["tool_calls"]}
        if role == "tool" and fields.get("tool_call_id") in tool_names:  # some templates show the name
            fields.setdefault("name", tool_names[fields["tool_call_id"]])
        parsed.append(fields)
    return tuple(parsed)


def _content(content: Any, param: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [None]
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        raise wrong(f"{param}.content", "must be a text, or a list of parts of type text")
    return "".join(part["text"] for part in parts)


def _calls(calls: Any, param: str) -> list[dict[str, Any]]:
    parsed = []
    try:
        for call in calls:
            arguments = call["function"].get("arguments") or "{}"
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
            if not isinstance(arguments, dict):
                raise ValueError
            function = {"name": str(call["function"]["name"]), "arguments": arguments}
            parsed.append({"id": str(call.get("id", "")), "type": "function", "function": function})
    except (TypeError, KeyError, ValueError, AttributeError):
        raise wrong(param, "must be calls of functions whose arguments are JSON objects") from None
    return parsed


def _tools(tools: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    for place, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        parameters = function.get("parameters") if isinstance(function, dict) else None
        is_named = isinstance(function, dict) and isinstance(function.get("name"), str)
        if not is_named or not isinstance(parameters, (dict, type(None))):
            raise ApiError(400, f"tools[{place}] must be a function with a name and a JSON schema", f"tools[{place}]")
    return tuple(tools)


def _is_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(token) is int for token in prompt)


def _as_tuple(kind: type | tuple[type, ...]) -> tuple[type, ...]:
    return kind if isinstance(kind, tuple) else (kind,)
