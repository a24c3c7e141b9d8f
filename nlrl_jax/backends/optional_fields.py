"""Which optional fields of a request a server takes, learned from its answers.

    request = Request(known, whole)
    transport.post(path, request.body, read, request.revise)   # -> the body to send in the place of one that failed
    request.answered()

A refusal comes in many forms: a status that names the field, a status 500, an error in the body of a 200, a connection
that is closed. A refusal that names a field costs one attempt; any other failure that may pass is met by the same
request once more, before a field is blamed. Where none is named, a field is suspect until a request that has it is
answered: first `n` is left out, then everything suspect at once; where that is answered, later requests bring the
suspects back one by one. So an outage ends after as many attempts as ever, and a field that has worked is not blamed.

Messages that the model's chat template refuses are folded (`backends.chat_roles`), and what does not fit the server's
context (`backends.context_limits`) is an error at once.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nlrl_jax.backends import chat_roles, context_limits
from nlrl_jax.backends.responses import is_filtered
from nlrl_jax.backends.transport import Failure

# What makes vLLM, SGLang and llama.cpp continue a chat's last message.
CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
_TOKENIZER = "Give the model's tokenizer (--endpoint_tokenizer MODEL), so that prompts go to /completions as text"
# What no limit on the draws is called, where a server has limits of its own (docs/endpoints.md).
NO_LIMIT = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
# Fields that a request can do without -> what that means. The last ones are defaults of every server.
OPTIONAL = {
    "n": "replies are requested one by one",
    "top_k": "replies are drawn from all tokens, or from as many as the server has set",
    **dict.fromkeys(("min_p", "repetition_penalty"), "the server's own holds, if it has one"),
    "stop": "replies are cut here, and cost more tokens",
    "seed": "replies do not follow from the run's seed",
    "top_p": "replies are drawn from all tokens",
    "temperature": "it is the server's default",
    **dict.fromkeys(CONTINUE, f"it may begin a new message where it should continue ours. {_TOKENIZER}"),
}
DEFAULTS = {"temperature": 1.0}  # optional only with this value
RENAMED = {"max_tokens": "max_completion_tokens"}
DOUBTFUL = {"n", *NO_LIMIT, *CONTINUE}  # that many servers do not support
_CONTENT = {"model", "messages", "prompt"}
_LISTED = {"echo", "logprobs", "top_logprobs"}  # which --extra cannot leave out
PATIENCE = 3  # attempts at a request that fails without a reason, before suspects are left out
# Statuses that are about the key, the address or the moment.
_OTHER = (401, 402, 403, 404, 407, 408, 409, 413, 425, 429, 502, 504)  # and a gateway's, from 520 on
_MOST = re.compile(r"(?:<=|at most|than or equal to|maximum(?: value)?(?: of| is)?|up to|between 1 and)\D{0,3}(\d+)")
_EXACT = re.compile(r"""["']param["']\s*:\s*["'](\w+)|["']loc["']\s*:\s*[\[(]\s*["']body["']\s*,\s*["'](\w+)""")
_REFUSAL = re.compile(
    r"un(?:expected|supported|known|recogni[sz]ed)|not (?:supported|allowed|permitted|implemented|accepted)|extra"
)
# What an error says of the fields that there are, as Groq and serde do.
_GUESS = re.compile(r"(?:did you mean|expected one of|(?:known|supported|allowed|valid) \w+ are)[^.}]*", re.IGNORECASE)
# What servers say that are about to be there again.
_MOMENT = re.compile(
    r"\b(?:loading|warming up|starting up|overloaded(?:_error)?|over capacity|busy|try again (?:later|soon|shortly|in)"
    r"|temporarily|unavailable)\b",
    re.IGNORECASE,
)
_log = logging.getLogger(__name__)


class KnownFields:
    """What a server's answers have shown; any number of threads may share it.

    Attributes:
      refused, accepted: names of fields. suspects: those of which one or more are refused.
      most: the greatest `n` that was answered. choices: the greatest that the server takes; 0 if unknown.
      folded: what of the messages' roles it does not take. no_top_k: the value that is no limit.
    """

    def __init__(self):
        self.refused: set[str] = set()
        self.accepted: set[str] = set()
        self.suspects: list[str] = []
        self.most, self.choices = 1, 0
        self.folded: set[str] = set()
        self.no_top_k = NO_LIMIT["top_k"]
        self.lock = threading.RLock()

    def allowed(self, body: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
        """The body without refused fields, and with one of the suspects; `own` are the user's and stay."""
        with self.lock:
            suspects = [name for name in self.suspects if name in body]
            out = self.refused.union(name for name in suspects if name not in _group(suspects[0]))
            body = without(body, out.intersection([*_optional(body), *RENAMED]).difference(own))
            if self.folded and "messages" in body:
                body["messages"] = chat_roles.folded(body["messages"], self.folded)
            if "n" in body and self.choices:
                body["n"] = min(body["n"], self.choices)
            if "top_k" not in own and body.get("top_k") == NO_LIMIT["top_k"]:
                body["top_k"] = self.no_top_k
        return body

    def doubts(self, body: Mapping[str, Any], own: Collection[str]) -> list[str]:
        """The optional fields of a body that have not been in an answered request."""
        known = self.accepted - ({"n"} if body.get("n", 1) > self.most else set())
        return [name for name in _optional(body) if name not in known and name not in own]

    def accept(self, body: Mapping[str, Any]) -> None:
        with self.lock:
            self.accepted.update(_optional(body))
            self.most = max(self.most, body.get("n", 1))
            self.suspects = [name for name in self.suspects if name not in self.accepted]

    def limit_choices(self, choices: int, server: str) -> None:
        """Requests at most so many at once from now on."""
        with self.lock:
            new, self.choices = choices != self.choices, choices
        if new:
            _log.warning("%s does not take n above %d, replies are requested so many at a time", server, choices)

    def fold(self, messages: Sequence[dict[str, str]], error: str, server: str) -> list[dict[str, str]] | None:
        """The messages as an error wants them, from now on; None where it is about something else, or nothing helps."""
        kinds = chat_roles.refused(error)
        for more in (kinds, [chat_roles.SYSTEM]) if kinds else ():
            with self.lock:
                self.folded.update(more)
            changed = chat_roles.folded(messages, self.folded)
            if changed != list(messages):
                said = "its system text" if chat_roles.SYSTEM in self.folded else "a neighbour's text"
                _log.warning("%s does not take %s: %s goes into the user's message", server, " and ".join(more), said)
                return changed
        return None

    def refuse(self, names: Collection[str], server: str) -> None:
        """Leaves fields out from now on, and says so once."""
        if "n" in names and self.most > 1:
            self.limit_choices(self.most, server)
            names = [name for name in names if name != "n"]
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
        self.body = self._whole = known.allowed(whole, own)
        self._out: list[str] = []  # left out of the last body on suspicion
        self._full: dict[str, Any] | None = None  # the body before all suspects were left out
        self._cleared = self._unsure = False  # it failed without all suspects; without some
        self._failed = False  # the last body, once

    def revise(self, failure: Failure, attempt: int, left: int) -> dict[str, Any] | None:
        """The body to send after a failure; None if there is no other one.

        Args:
          failure: becomes final, with advice, where it is about a field that stays.
          attempt: of this request, from 0. left: further ones.
        """
        if not _is_about_fields(failure):
            return None
        marked = marked_fields(failure.body)
        if not set(marked) - {*_CONTENT, *RENAMED, *RENAMED.values()}:
            if advice := context_limits.advice(failure.body, self.body):
                failure.is_final, failure.advice = True, advice
                return None
            if messages := self.known.fold(self.body.get("messages", ()), failure.body, self.server):
                return self._send({**self.body, "messages": messages}, self._out)
        named = [name for name in named_fields(failure.body, self.body) if self._blames(failure, name)]
        sure = failure.is_final or marked or named and _REFUSAL.search(failure.body)
        if not sure and not self._failed and left > 0:
            self._failed = True  # it may pass: the same once more
            return None
        doubts = self.known.doubts(self.body, self.own)
        if other := self._other_value(failure, named, doubts):
            return self._send({**self.body, **other}, [])
        optional = [name for name in (*_optional(self.body), *RENAMED) if name not in self.own]
        here = {other for name in named if name in optional for other in _group(name) if other in self.body}
        if here:
            self.known.refuse(sorted(here), self.server)
            return self._send(without(self.body, here), [])
        roles = "" if set(named) - _CONTENT else self._roles(failure)
        if named or roles:
            failure.is_final, failure.advice = True, roles or self._advice(named) or failure.advice
        if named or roles or self._cleared:
            return None
        if left <= 0 and not failure.is_final:
            self._unsure = True
            if "n" not in doubts:
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
        doubts = self.known.doubts(self._whole, self.own)
        out = [name for name in self._out if name in doubts]
        if len({_group(name) for name in out}) == 1 and not self._unsure:
            self.known.refuse(out, self.server)
        elif out:
            with self.known.lock:
                self.known.suspects = out

    def _blames(self, failure: Failure, name: str) -> bool:
        """Whether a failure that names a field is about it: one that has worked may stand in the text of an outage."""
        return failure.is_final or name not in self.known.accepted

    def _other_value(self, failure: Failure, named: Collection[str], doubts: Collection[str]) -> dict[str, Any] | None:
        """A value that the error gives for a field: fewer choices, or another name of no limit."""
        text, number = failure.body, self.body.get("n", 1)
        if "n" in doubts and ("n" in named or re.search(r"\bn\b|n_cmpl|choices", text)):
            choices = max((int(most) for most in _MOST.findall(text) if 1 < int(most) < number), default=0)
            if choices:
                self.known.limit_choices(choices, self.server)
                return {"n": choices}
        if "top_k" in named and "top_k" not in self.own and self.body.get("top_k") == 0 and "-1" in text:
            self.known.no_top_k = -1  # SGLang
            return {"top_k": -1}
        return None

    def _roles(self, failure: Failure) -> str:
        """What helps where the server takes no chat like this one; "" where the failure is about something else."""
        roles = [message["role"] for message in self.body.get("messages", ())]
        if roles[-1:] == ["assistant"] and chat_roles.refuses_prefill(failure.body):
            thinks = "enable_thinking" in failure.body  # llama.cpp of early 2026
            off = (
                ", or leave thoughts out: --extra 'chat_template_kwargs={\"enable_thinking\": false}'" if thinks else ""
            )
            return f"The server does not continue an assistant message. {_TOKENIZER}{off}"
        if roles and chat_roles.refused(failure.body):
            return f"The model's chat template refuses messages of {', '.join(roles)}: serve it with another template"
        return ""

    def _advice(self, named: Collection[str]) -> str:
        if set(named) <= CONTINUE.keys():
            return f"The server does not continue an assistant message. {_TOKENIZER}"
        own = [name for name in named if name in self.own]
        if own:
            return f"--extra sets {' and '.join(own)}; leave that out there, or change it"
        needed = [name for name in named if {name, RENAMED.get(name)} & {*self.body} - _CONTENT]
        if not needed:
            return ""
        if needed[0] in _LISTED:
            return f"This run needs {needed[0]}"
        return f"This run needs {needed[0]}; --extra {needed[0]}=null leaves it out, and the server then has its own"

    def _send(self, body: dict[str, Any], out: list[str]) -> dict[str, Any]:
        self.body, self._out, self._failed = body, out, False
        return body


def without(body: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """A body without some of its fields, or with their other names."""
    renamed = {RENAMED[name]: body[name] for name in names if name in RENAMED and name in body}
    return {name: value for name, value in body.items() if name not in names} | renamed


def marked_fields(text: str) -> list[str]:
    """The fields that an error marks as those that it is about."""
    return [name for match in _EXACT.finditer(text) for name in match.groups() if name]


def named_fields(text: str, body: Mapping[str, Any]) -> list[str]:
    """The fields, optional ones or those of a body, that an error is about: those that it marks as such, else all that
    it names. `n` counts only where it is marked: the letter is in many texts.
    """
    exact = marked_fields(text)
    text = _GUESS.sub("", text)
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
    if (status == 200 or status >= 500) and not failure.is_final and _MOMENT.search(failure.body):
        return False
    return not 300 <= status < 400 and status not in _OTHER and not 520 <= status < 530


def _optional(body: Mapping[str, Any]) -> list[str]:
    return [name for name in OPTIONAL if name in body and body[name] == DEFAULTS.get(name, body[name])]


def _group(name: str) -> tuple[str, ...]:
    """The fields that mean something only together with this one."""
    return tuple(CONTINUE) if name in CONTINUE else (name,)
