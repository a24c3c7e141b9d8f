"""Forms in which chat templates write calls of tools, and how each is read.

JSON       <tool_call>\\n{"name": "look", "arguments": {"at": "door"}}\\n</tool_call>     Hermes, Qwen2.5, Qwen3
           [TOOL_CALLS][{"name": "look", "arguments": {"at": "door"}}]                  Mistral Nemo
           {"name": "look", "parameters": {"at": "door"}}                               Llama 3.1, or in python:
           <|python_tag|>look.call(at="door")
NAMED      [TOOL_CALLS]look[ARGS]{"at": "door"}                                          Mistral Small, Devstral
           <function=look>{"at": "door"}</function>                                     functionary
TAGGED     <function=look>\\n<parameter=at>\\ndoor\\n</parameter>\\n</function>             Qwen3-Coder, Qwen3.5
           <tool_call>look\\n<arg_key>at</arg_key>\\n<arg_value>door</arg_value>          GLM
BARE       <|tool_call>call:look{at:<|"|>door<|"|>,times:2}<tool_call|>                   Gemma 4
KEYED      <|tools_prefix|>[{"look": {"at": "door"}}]<|tools_suffix|>                   Apertus
PYTHON     <|tool_call_start|>[look(at='door')]<|tool_call_end|>                         LFM2.5
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

PYTHON_TAG = "<|python_tag|>"
_ANOTHER = re.compile(r"\s*[;,]?\s*(?={)")
_BARE_KEY = re.compile(r"([{,]\s*)([\w.-]+)\s*:")
_DECODER = json.JSONDecoder()
_ARGUMENTS_KEYS = ("arguments", "parameters")  # models write either, whatever the template does


class ToolCall(NamedTuple):
    """A call. name: the tool's. arguments: by name."""

    name: str
    arguments: Mapping[str, Any]


class CallError(ValueError):
    """A call that cannot be read. The message tells the model why."""


@dataclasses.dataclass(frozen=True)
class CallForm:
    """How calls are written. opener: the mark before one."""

    opener: str

    def starts(self, text: str) -> list[int]:
        """Where calls begin in a reply, behind their openers."""
        return [match.end() for match in re.finditer(re.escape(self.opener), text)]

    def parse(self, text: str, start: int) -> tuple[list[ToolCall], int]:
        """The calls that begin at a place of a reply, and where they end. CallError: they cannot be read."""
        raise NotImplementedError

    def before(self, text: str) -> str:
        """The reply before its first call."""
        return text.rstrip().removesuffix(self.opener).rstrip()


@dataclasses.dataclass(frozen=True)
class JsonCalls(CallForm):
    """A call is a JSON object with a name and arguments, or a list of such; without an opener the whole reply is one.

    name_key, arguments_key: the object's keys.
    """

    name_key: str = "name"
    arguments_key: str = "arguments"

    def starts(self, text: str) -> list[int]:
        if self.opener:
            return super().starts(text)
        # No mark tells a call from an answer in JSON; the key "name" does.
        start = len(text) - len(text.lstrip())
        if text.startswith(PYTHON_TAG, start):
            return [start + len(PYTHON_TAG)]
        return [start] if text.startswith("{", start) and '"name"' in text else []

    def parse(self, text: str, start: int) -> tuple[list[ToolCall], int]:
        if not self.opener and PYTHON_TAG in text[:start] and not text[start:].lstrip().startswith(("{", "[")):
            return [_python_call(_parsed_python(text[start:].strip()))], len(text)
        calls, end = [], start
        while True:
            decoded, end = _decode(text, end)
            calls += [self._call(entry) for entry in (decoded if isinstance(decoded, list) else [decoded])]
            another = _ANOTHER.match(text, end)  # several objects may follow one opener
            if another is None:
                return calls, end
            end = another.end()

    def _call(self, entry: Any) -> ToolCall:
        if not isinstance(entry, dict) or not isinstance(entry.get(self.name_key), str):
            raise CallError(f'a call must be a JSON object with a text "{self.name_key}"')
        # A call without arguments may leave them out.
        keys = [key for key in (self.arguments_key, *_ARGUMENTS_KEYS) if key in entry]
        return ToolCall(entry[self.name_key], _object(entry[keys[0]] if keys else {}))


@dataclasses.dataclass(frozen=True)
class NamedCalls(CallForm):
    """A call is a name and, after some marks, a JSON object of arguments."""

    def parse(self, text: str, start: int) -> tuple[list[ToolCall], int]:
        name = re.compile(r"[\w.-]*").match(text, start)[0]
        brace = text.find("{", start)
        if not name or brace < 0 or self.opener in text[start:brace]:
            raise CallError("a call must be the name of a tool and a JSON object of its arguments")
        decoded, end = _decode(text, brace)
        return [ToolCall(name, _object(decoded))], end


@dataclasses.dataclass(frozen=True)
class KeyedCalls(JsonCalls):
    """A call is a JSON object whose key is the name and whose value the arguments, or a list of such."""

    def _call(self, entry: Any) -> ToolCall:
        if not isinstance(entry, dict) or len(entry) != 1:
            raise CallError("a call must be a JSON object with one key, the name of a tool")
        ((name, arguments),) = entry.items()
        return ToolCall(name, _object(arguments))


@dataclasses.dataclass(frozen=True)
class BareCalls(NamedCalls):
    """A call is a name and an object as in JSON, but keys have no quotes, and texts stand in marks.

    quote: the mark before and after a text.
    """

    quote: str

    def parse(self, text: str, start: int) -> tuple[list[ToolCall], int]:
        # What stands between every other two marks is a text; outside texts are the keys, and where the call ends.
        pieces = text[start:].split(self.quote)
        for i, piece in enumerate(pieces):
            pieces[i] = json.dumps(piece) if i % 2 else _BARE_KEY.sub(r'\1"\2":', piece)
        calls, end = super().parse("".join(pieces), 0)
        return calls, self._end(text, start) if end else start

    def _end(self, text: str, start: int) -> int:
        """Where the object that begins first closes, braces within texts aside."""
        depth, position = 0, start
        for i, piece in enumerate(text[start:].split(self.quote)):
            for offset, letter in enumerate(piece if i % 2 == 0 else ""):
                depth += (letter == "{") - (letter == "}")
                if letter == "}" and depth == 0:
                    return position + offset + 1
            position += len(piece) + len(self.quote)
        return len(text)


@dataclasses.dataclass(frozen=True)
class TaggedCalls(CallForm):
    """A call is written in tags. Each attribute is the text between two of its parts.

    Attributes:
      wrapper: the mark before the opener of the first call.
      name_close: after the name.
      key_open: before a key.
      key_close: between a key and its value; an attribute in it may have any value.
      value_close: after a value.
      call_close: after the last one.
    """

    wrapper: str
    name_close: str
    key_open: str
    key_close: str
    value_close: str
    call_close: str

    def parse(self, text: str, start: int) -> tuple[list[ToolCall], int]:
        end = text.find(self.call_close, start)
        if end < 0:
            raise CallError(f"a call must end in {self.call_close}")
        body = text[start:end]
        name = re.match(rf"\s*([\w.:-]+)\s*{_flexible(self.name_close)}\s*", body)
        if name is None:
            raise CallError(f"a call must begin with {self.opener}NAME{self.name_close}")
        arguments, position = {}, name.end()
        for match in self._argument.finditer(body, position):
            # Words between two arguments belong to neither.
            if body[position : match.start()].strip():
                break
            arguments[match["key"].strip()] = match["text"].removeprefix("<![CDATA[").removesuffix("]]>")
            position = match.end()
        if body[position:].strip():
            form = f"{self.key_open}NAME{self.key_close}VALUE{self.value_close}"
            raise CallError(f"each argument must be written {' '.join(form.split())}")
        return [ToolCall(name[1], arguments)], end + len(self.call_close)

    def before(self, text: str) -> str:
        return super().before(text).removesuffix(self.wrapper).rstrip()

    @property
    def _argument(self) -> re.Pattern[str]:
        blank = r"\n?" if self.key_close.endswith("\n") else ""
        return re.compile(
            rf"\s*{re.escape(self.key_open)}(?P<key>[^<>\"]*){_flexible(self.key_close)}{blank}(?P<text>.*?){blank}"
            rf"{re.escape(self.value_close)}",
            re.DOTALL,
        )


@dataclasses.dataclass(frozen=True)
class PythonCalls(CallForm):
    """Calls are a list of Python's. closer: what stands behind it."""

    closer: str

    def parse(self, text: str, start: int) -> tuple[list[ToolCall], int]:
        end = text.find(self.closer, start)
        parsed = _parsed_python(text[start : end if end >= 0 else len(text)].strip())
        calls = parsed.elts if isinstance(parsed, ast.List) else [parsed]
        return [_python_call(call) for call in calls], end + len(self.closer) if end >= 0 else len(text)


def _object(arguments: Any) -> Mapping[str, Any]:
    if isinstance(arguments, str):  # a JSON object within a string, as OpenAI writes it
        arguments, _ = _decode(arguments, 0)
    if not isinstance(arguments, dict):
        raise CallError("the arguments of a call must be a JSON object")
    return arguments


def _decode(text: str, start: int) -> tuple[Any, int]:
    start += len(text[start:]) - len(text[start:].lstrip())
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at character {error.pos - start}" if isinstance(error, json.JSONDecodeError) else error
        raise CallError(f"the call is no valid JSON: {reason}") from None


def _parsed_python(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CallError(f"the call is no valid Python: {error.args[0]}") from None


def _python_call(call: ast.expr) -> ToolCall:
    """`look(at='door')` or `look.call(at='door')`."""
    function = call.func if isinstance(call, ast.Call) else None
    if isinstance(function, ast.Attribute) and function.attr == "call":
        function = function.value
    if not isinstance(function, ast.Name) or call.args or any(keyword.arg is None for keyword in call.keywords):
        raise CallError("a call must be written NAME(argument=value)")
    try:
        return ToolCall(function.id, {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords})
    except ValueError:
        raise CallError("the arguments of a call must be plain values") from None


def _flexible(marks: str) -> str:
    """A pattern of marks, whatever the blanks and the values of attributes in them."""
    words = (re.sub(r'="[^"]*"', '="[^"]*"', re.escape(word)) for word in marks.split())
    return r"\s*".join(words)
