"""Which optional fields of a request a server takes, learned from its answers.

    request = Request(known, whole)
    transport.post(path, request.body, read, request.revise)   # -> the body to send in the place of one that failed
    request.answered()

A refusal comes in many forms: a status that names the field, a status 500, an error in the body of a 200, a connection
that is closed. What names a field costs one attempt. Otherwise a field is suspect until a request that has it is
answered: first `n` is left out, then everything suspect at once; where that is answered, later requests bring the
suspects back one by one. So an outage ends after as many attempts as ever, and a field that has worked is not blamed.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Mapping
from typing import Any

from nlrl_jax.backends.responses import is_filtered
from nlrl_jax.backends.transport import Failure

# What makes vLLM, SGLang and llama.cpp continue a chat's last message.
CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
_TOKENIZER = "Give the model's tokenizer (--endpoint_tokenizer MODEL), so that prompts go to /completions as text"
# Fields that a request can do without -> what that means. The last ones are defaults of every server.
OPTIONAL = {
    "n": "replies are requested one by one",
    "top_k": "replies are drawn from all tokens",
    "stop": "replies are cut here, and cost more tokens",
    "seed": "replies do not follow from the run's seed",
    "top_p": "replies are drawn from all tokens",
    "temperature": "it is the server's default",
    **dict.fromkeys(CONTINUE, f"it may begin a new message where it should continue ours. {_TOKENIZER}"),
}
DEFAULTS = {"temperature": 1.0}  # optional only with this value
RENAMED = {"max_tokens": "max_completion_tokens"}
DOUBTFUL = {"n", "top_k", *CONTINUE}  # that many servers do not support
_CONTENT = {"model", "messages", "prompt"}
PATIENCE = 3  # attempts at a request that fails without a reason, before suspects are left out
# Statuses that are about the key, the address or the moment.
_OTHER = (401, 402, 403, 404, 407, 408, 409, 413, 425, 429)
_EXACT = re.compile(r"""["']param["']\s*:\s*["'](\w+)|["']loc["']\s*:\s*[\[(]\s*["']body["']\s*,\s*["'](\w+)""")
_log = logging.getLogger(__name__)


class KnownFields:
    """What a server's answers have shown; any number of threads may share it.

    Attributes:
      refused, accepted: names of fields. suspects: those of which one or more are refused.
    """

    def __init__(self):
        self.refused: set[str] = set()
        self.accepted: set[str] = set()
        self.suspects: list[str] = []
        self.lock = threading.RLock()

    def allowed(self, body: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
        """The body without refused fields, and with one of the suspects; `own` are the user's and stay."""
        with self.lock:
            suspects = [name for name in self.suspects if name in body]
            out = self.refused.union(name for name in suspects if name not in _group(suspects[0]))
        return without(body, out.intersection([*_optional(body), *RENAMED]).difference(own))

    def doubts(self, body: Mapping[str, Any], own: Collection[str]) -> list[str]:
        """The optional fields of a body that have not been in an answered request."""
        return [name for name in _optional(body) if name not in self.accepted and name not in own]

    def accept(self, body: Mapping[str, Any]) -> None:
        with self.lock:
            self.accepted.update(_optional(body))
            self.suspects = [name for name in self.suspects if name not in self.accepted]

    def refuse(self, names: Collection[str], server: str) -> None:
        """Leaves fields out from now on, and says so once."""
        with self.lock:
            new = [name for name in names if name not in self.refused]
            self.refused.update(new)
            self.suspects = [name for name in self.suspects if name not in self.refused]
        for group in dict.fromkeys(map(_group, new)):
            then = f"sent as {RENAMED[group[0]]}" if group[0] in RENAMED else f"left out: {OPTIONAL[group[0]]}"
            _log.warning("%s does not take %s, %s", server, " and ".join(group), then)


class Request:
    """One request on its way.

    Args:
      whole: all its fields. own: names of those that the user sets, which are never left out.

    Attributes:
      body: what is to be sent, or has been sent last.
    """

    def __init__(self, known: KnownFields, whole: Mapping[str, Any], own: Collection[str], server: str):
        self.known, self.own, self.server = known, own, server
        self.body = known.allowed(whole, own)
        self._out: list[str] = []  # left out of the last body on suspicion
        self._full: dict[str, Any] | None = None  # the body before all suspects were left out
        self._cleared = self._unsure = False  # it failed without all suspects; without some

    def revise(self, failure: Failure, attempt: int, left: int) -> dict[str, Any] | None:
        """The body to send after a failure; None if there is no other one.

        Args:
          failure: becomes final, with advice, where it is about a field that stays.
          attempt: of this request, from 0. left: further ones.
        """
        if not _is_about_fields(failure):
            return None
        named = [name for name in named_fields(failure.body, self.body) if self._blames(failure, name)]
        optional = [name for name in (*_optional(self.body), *RENAMED) if name not in self.own]
        here = {other for name in named if name in optional for other in _group(name) if other in self.body}
        if here:
            self.known.refuse(sorted(here), self.server)
            return self._send(without(self.body, here), [])
        if named:
            failure.is_final, failure.advice = True, self._advice(named) or failure.advice
        doubts = self.known.doubts(self.body, self.own)
        if named or self._cleared or (left <= 0 and not failure.is_final and "n" not in doubts):
            return None
        probing = bool(doubts) and set(doubts) <= {*_group(doubts[0])} & {*self.known.suspects}
        if "n" in doubts:
            return self._send(without(self.body, ["n"]), ["n"])
        if doubts and (failure.is_final or probing or attempt + 1 >= PATIENCE or left == 1):
            self._full = self.body
            return self._send(without(self.body, doubts), [*self._out, *doubts])
        if not doubts and self._full is not None and not failure.is_final:  # it is not the fields
            self._cleared = True
            return self._send(self._full, [])
        self._unsure = True
        return None

    def answered(self) -> None:
        """Learns from an answer to the last body."""
        self.known.accept(self.body)
        out = [name for name in self._out if name not in self.known.accepted]
        if len({_group(name) for name in out}) == 1 and not self._unsure:
            self.known.refuse(out, self.server)
        elif out:
            with self.known.lock:
                self.known.suspects = out

    def _blames(self, failure: Failure, name: str) -> bool:
        """Whether a failure that names a field is about it: one that has worked may stand in the text of an outage."""
        return failure.is_final or name not in self.known.accepted

    def _advice(self, named: Collection[str]) -> str:
        if set(named) <= CONTINUE.keys():
            return f"The server does not continue an assistant message. {_TOKENIZER}"
        own = [name for name in named if name in self.own]
        if own:
            return f"--extra sets {' and '.join(own)}; leave that out there, or change it"
        needed = [name for name in named if {name, RENAMED.get(name)} & {*self.body} - _CONTENT]
        if not needed:
            return ""
        return f"This run needs {needed[0]}; --extra {needed[0]}=null leaves it out, and the server then has its own"

    def _send(self, body: dict[str, Any], out: list[str]) -> dict[str, Any]:
        self.body, self._out = body, out
        return body


def without(body: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """A body without some of its fields, or with their other names."""
    renamed = {RENAMED[name]: body[name] for name in names if name in RENAMED and name in body}
    return {name: value for name, value in body.items() if name not in names} | renamed


def named_fields(text: str, body: Mapping[str, Any]) -> list[str]:
    """The fields, optional ones or those of a body, that an error is about: those that it marks as such, else all that
    it names. `n` counts only where it is marked: the letter is in many texts.
    """
    exact = [name for match in _EXACT.finditer(text) for name in match.groups() if name]
    words = set(exact or re.findall(r"\w+", text)) - (set() if exact else {"n"})
    fields = {*OPTIONAL, *RENAMED, *body} - (set() if exact else _CONTENT)
    return sorted(fields & words)


def _is_about_fields(failure: Failure) -> bool:
    """Whether a failure may be a refusal of a field: not one of the connection, the key, the address, the moment or the
    prompt."""
    status = failure.status
    if is_filtered(failure):
        return False
    if status is None:
        return not failure.is_unreachable
    return not 300 <= status < 400 and status not in _OTHER


def _optional(body: Mapping[str, Any]) -> list[str]:
    return [name for name in OPTIONAL if name in body and body[name] == DEFAULTS.get(name, body[name])]


def _group(name: str) -> tuple[str, ...]:
    """The fields that mean something only together with this one."""
    return tuple(CONTINUE) if name in CONTINUE else (name,)
