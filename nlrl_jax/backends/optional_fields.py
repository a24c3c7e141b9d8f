"""Which optional fields of a request a server takes, learned from its answers.

    request = Request(known, whole)
    transport.post(path, request.body, read, request.revise)   # -> the body to send in the place of one that failed
    request.answered()

A refusal comes in many forms: a status that names the field, a status 500, an error in the body of a 200, a connection
that is closed. A field that a refusal names is left out at once. Any other failure that may pass is met by the same
request once more; then `n` is left out, and then every optional field that has not been in an answered request. What
was left out of the request that is answered stays out for the run, which is said once.

Messages that the model's chat template refuses are folded (`lm.chat_roles`), and what does not fit the server's
context (`backends.context_limits`) is an error at once.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nlrl_jax.backends import context_limits
from nlrl_jax.backends.responses import is_filtered
from nlrl_jax.backends.transport import Failure
from nlrl_jax.lm import chat_roles

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
PATIENCE = 3  # attempts at a request that fails without a reason, before its optional fields are left out
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
      refused, accepted: names of fields.
      answered_choices: the greatest `n` that was answered. choices: the greatest that the server takes; 0 if unknown.
      folded: what of the messages' roles it does not take. no_top_k: the value that is no limit.
    """

    def __init__(self):
        self.refused: set[str] = set()
        self.accepted: set[str] = set()
        self.answered_choices, self.choices = 1, 0
        self.folded: set[str] = set()
        self.no_top_k = NO_LIMIT["top_k"]
        self.lock = threading.RLock()

    def allowed(self, body: Mapping[str, Any], fixed: Collection[str]) -> dict[str, Any]:
        """The body as the server takes it; `fixed` are the user's fields, which stay."""
        with self.lock:
            body = without(body, self.refused.intersection([*_optional(body), *RENAMED]).difference(fixed))
            if self.folded and "messages" in body:
                body["messages"] = chat_roles.folded(body["messages"], self.folded)
            if "n" in body and self.choices:
                body["n"] = min(body["n"], self.choices)
            if "top_k" not in fixed and body.get("top_k") == NO_LIMIT["top_k"]:
                body["top_k"] = self.no_top_k
        return body

    def doubts(self, body: Mapping[str, Any], fixed: Collection[str]) -> list[str]:
        """The optional fields of a body that have not been in an answered request."""
        accepted = self.accepted - ({"n"} if body.get("n", 1) > self.answered_choices else set())
        return [name for name in _optional(body) if name not in accepted and name not in fixed]

    def accept(self, body: Mapping[str, Any]) -> None:
        with self.lock:
            self.accepted.update(_optional(body))
            self.answered_choices = max(self.answered_choices, body.get("n", 1))

    def limit_choices(self, choices: int, server: str) -> None:
        """Requests at most so many at once from now on."""
        with self.lock:
            is_new, self.choices = choices != self.choices, choices
        if is_new:
            _log.warning("%s does not take n above %d, replies are requested so many at a time", server, choices)

    def fold(self, messages: Sequence[dict[str, str]], error: str, server: str) -> list[dict[str, str]] | None:
        """The messages as an error wants them, from now on; None where it is about something else, or nothing helps."""
        refused = chat_roles.refused(error)
        for kinds in (refused, [chat_roles.SYSTEM]) if refused else ():
            with self.lock:
                self.folded.update(kinds)
            changed = chat_roles.folded(messages, self.folded)
            if changed != list(messages):
                text = "its system text" if chat_roles.SYSTEM in self.folded else "a neighbour's text"
                _log.warning("%s does not take %s: %s goes into the user's message", server, " and ".join(kinds), text)
                return changed
        return None

    def refuse(self, names: Collection[str], server: str, is_guess: bool = False) -> None:
        """Leaves fields out from now on, and says so once; a guess are those of which one or more is refused."""
        if "n" in names and self.answered_choices > 1:
            self.limit_choices(self.answered_choices, server)
            names = [name for name in names if name != "n"]
        with self.lock:
            added = [name for name in names if name not in self.refused]
            self.refused.update(added)
        changes = []
        for group in dict.fromkeys(map(_group, added)):
            change = OPTIONAL.get(group[0]) or f"sent as {RENAMED[group[0]]}"
            changes.append(f"{' and '.join(group)} ({change})")
        verb = "refuses a field and does not say which; left out are" if is_guess and changes[1:] else "does not take"
        if changes:
            _log.warning("%s %s %s", server, verb, "; ".join(changes))


class Request:
    """One request on its way.

    Args:
      whole: all its fields. fixed: names of those that the user sets, which are never left out.

    Attributes:
      body: what is to be sent, or has been sent last.
    """

    def __init__(self, known: KnownFields, whole: Mapping[str, Any], fixed: Collection[str], server: str):
        self.known, self.fixed, self.server = known, fixed, server
        self._whole, self.body = whole, known.allowed(whole, fixed)
        self._tried: list[str] = []  # fields that are left out without having been named
        self._is_repeated = self._is_whole_again = False  # the last body has failed twice; it also failed bare

    def revise(self, failure: Failure, attempt: int, attempts_left: int) -> dict[str, Any] | None:
        """The body to send after a failure; None if there is no other one.

        Args:
          failure: becomes final, with advice, where it is about a field that stays.
          attempt: of this request, from 0. attempts_left: further ones.
        """
        if not _is_about_fields(failure):
            return None
        # 1. What stands in the messages: their length, their roles.
        marked = marked_fields(failure.body)
        if not set(marked) - {*_CONTENT, *RENAMED, *RENAMED.values()}:
            if advice := context_limits.advice(failure.body, self.body):
                failure.is_final, failure.advice = True, advice
                return None
            if messages := self.known.fold(self.body.get("messages", ()), failure.body, self.server):
                return self._send({**self.body, "messages": messages})
        # 2. A failure that may pass: the same once more. A field that has worked may stand in the text of an outage.
        named = named_fields(failure.body, self.body)
        named = [name for name in named if failure.is_final or name not in self.known.accepted]
        is_refusal = failure.is_final or marked or named and _REFUSAL.search(failure.body)
        if not is_refusal and not self._is_repeated and attempts_left > 0:
            self._is_repeated = True
            return None
        # 3. A named field: another value, or without it, or an error that says what to do.
        if values := self._other_value(failure, named):
            return self._send({**self.body, **values})
        optional = [name for name in (*_optional(self.body), *RENAMED) if name not in self.fixed]
        refused = {member for name in named if name in optional for member in _group(name) if member in self.body}
        if refused:
            self.known.refuse(sorted(refused), self.server)
            return self._send(without(self.body, refused))
        roles = "" if set(named) - _CONTENT else self._roles(failure)
        if named or roles:
            failure.is_final, failure.advice = True, roles or self._advice(named) or failure.advice
            return None
        # 4. No named field: without `n`, then bare, then as before, as it is not the fields.
        if attempts_left <= 0 and not failure.is_final:
            return None
        doubts = [] if self._is_whole_again else self.known.doubts(self.body, self.fixed)
        if "n" in doubts:
            return self._try_without(["n"])
        if doubts and (failure.is_final or attempt + 1 >= PATIENCE or attempts_left == 1):
            return self._try_without(doubts)
        if {*self._tried} - {"n"} and not failure.is_final:
            self._tried, self._is_whole_again = [], True
            return self._send(self.known.allowed(self._whole, self.fixed))
        return None

    def answered(self) -> None:
        """Learns from an answer to the last body."""
        self.known.accept(self.body)
        refused = [name for name in self._tried if name == "n" or name not in self.known.accepted]
        if refused:
            self.known.refuse(refused, self.server, is_guess=True)

    def _other_value(self, failure: Failure, named: Collection[str]) -> dict[str, Any] | None:
        """A value that the error gives for a field: fewer choices, or another name of no limit."""
        text, choices = failure.body, self.body.get("n", 1)
        if "n" in self.known.doubts(self.body, self.fixed) and (
            "n" in named or re.search(r"\bn\b|n_cmpl|choices", text)
        ):
            limit = max((int(number) for number in _MOST.findall(text) if 1 < int(number) < choices), default=0)
            if limit:
                self.known.limit_choices(limit, self.server)
                return {"n": limit}
        if "top_k" in named and "top_k" not in self.fixed and self.body.get("top_k") == 0 and "-1" in text:
            self.known.no_top_k = -1  # SGLang
            return {"top_k": -1}
        return None

    def _roles(self, failure: Failure) -> str:
        """What helps where the server takes no chat like this one; "" where the failure is about something else."""
        roles = [message["role"] for message in self.body.get("messages", ())]
        if roles[-1:] == ["assistant"] and chat_roles.refuses_prefill(failure.body):
            off = ""
            if "enable_thinking" in failure.body:  # llama.cpp of early 2026
                off = ", or leave thoughts out: --extra 'chat_template_kwargs={\"enable_thinking\": false}'"
            return f"The server does not continue an assistant message. {_TOKENIZER}{off}"
        if roles and chat_roles.refused(failure.body):
            return f"The model's chat template refuses messages of {', '.join(roles)}: serve it with another template"
        return ""

    def _advice(self, named: Collection[str]) -> str:
        if set(named) <= CONTINUE.keys():
            return f"The server does not continue an assistant message. {_TOKENIZER}"
        fixed = [name for name in named if name in self.fixed]
        if fixed:
            return f"--extra sets {' and '.join(fixed)}; leave that out there, or change it"
        needed = [name for name in named if {name, RENAMED.get(name)} & {*self.body} - _CONTENT]
        if not needed:
            return ""
        if needed[0] in _LISTED:
            return f"This run needs {needed[0]}"
        return f"This run needs {needed[0]}; --extra {needed[0]}=null leaves it out, and the server then has its own"

    def _try_without(self, names: list[str]) -> dict[str, Any]:
        self._tried += names
        return self._send(without(self.body, names))

    def _send(self, body: dict[str, Any]) -> dict[str, Any]:
        self.body, self._is_repeated = body, False
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
