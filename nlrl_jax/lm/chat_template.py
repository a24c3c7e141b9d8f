"""Chat templates: jinja2 programs that write a chat as one text, in the environment that `transformers` gives them.

render("{% for m in messages %}{{ m.content }}{% endfor %}", messages=[{"role": "user", "content": "Hello"}])
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.sandbox

from nlrl_jax.config import OptionError, assignments, check, joined_option, option

# What a template can read besides the variables that are set for it.
GIVEN = ("messages", "add_generation_prompt", "tools", "documents")
_THOUGHT_FIELDS = ("reasoning_content", "thinking", "reasoning")  # of a message; the first one that is there counts


@dataclasses.dataclass(frozen=True)
class TemplateOptions:
    """What a chat template is given besides the chat.

    Raises:
      OptionError: variables that cannot be read, or no date.
    """

    template: str = joined_option(
        "variables of a local model's chat template, such as enable_thinking=false; several separated by commas"
    )
    date: str = option(
        "", "the date for chat templates that print it, such as 2026-01-31; empty: the day the run begins"
    )
    shared: bool = False  # several models have these variables: each is given those that its template reads

    def __post_init__(self):
        check(self)
        for name in self.variables():
            if name in GIVEN:
                raise OptionError(f"template sets {name}, which depends on the chat; leave it out")
        if self.date:
            try:
                datetime.date.fromisoformat(self.date)
            except ValueError:
                raise OptionError(f"date is {self.date!r}; it must be a date such as 2026-01-31") from None

    def variables(self) -> dict[str, Any]:
        """`template` as a mapping. A value that is not JSON is a string."""
        return assignments("template", self.template, "variable")

    def check_read(self, sources: list[str], whose: str) -> None:
        """Refuses variables that none of the chat templates `sources` reads.

        Raises:
          ValueError: there is such a variable. `whose` templates they are, in words.
        """
        readable = frozenset().union(*map(variables_of, sources))
        # A variable that no template reads would be ignored without a word.
        unknown = [name for name in self.variables() if name not in readable]
        if unknown:
            names = ", ".join(sorted(readable.difference(GIVEN))) or "none"
            raise ValueError(
                f"--template sets {unknown[0]}, which {whose} does not read; variables that it reads: {names}"
            )


def render(source: str, date: str = "", **variables: Any) -> str:
    """The text that a template writes.

    Args:
      source: jinja2.
      date: what the template's `strftime_now` tells, as 2026-01-31; empty: the time of the machine.

    Raises:
      ValueError: the template refuses, or fails on, what it was given.
    """
    try:
        return _compile(source, date).render(**variables)
    except Exception as error:  # anything: a template is foreign code
        raise ValueError(f"the chat template refused the chat: {error}") from error


@dataclasses.dataclass(frozen=True, eq=False)
class ChatRenderer:
    """A model's chat template with all that it is given besides the chat.

    Attributes:
      source: jinja2.
      special_tokens: name, such as "bos_token" -> text.
      options: its variables and date.
      as_content: what every text of a message passes through (`Tokenizer.as_content`).
      tools: JSON schemas of the tools that the model is offered; None and () are the same but for a few templates.
    """

    source: str
    special_tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)
    options: TemplateOptions = TemplateOptions()
    as_content: Callable[[str], str] = str
    tools: Sequence[Mapping[str, Any]] | None = None

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The chat as one text, as `transformers` renders it; `variables` go before those of `options`.

        Raises:
          ValueError: the template refuses the chat.
        """
        return render(
            self.source,
            self.options.date,
            messages=[self._message(message) for message in messages],
            tools=None if self.tools is None else list(self.tools),
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **{**self.special_tokens, **self.options.variables(), **variables},
        )

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        # A thought under each name that templates have for it.
        thoughts = [message[name] for name in _THOUGHT_FIELDS if message.get(name) is not None]
        if thoughts:
            message = {"thinking": thoughts[0], **message, "reasoning_content": thoughts[0]}
        return {name: self._content(value) for name, value in message.items() if value is not None}

    def _content(self, value: Any) -> Any:
        """The value with each text in it as content."""
        if isinstance(value, str):
            return self.as_content(value)
        if isinstance(value, Mapping):
            return {name: self._content(field) for name, field in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._content(element) for element in value]
        return value


def variables_of(source: str) -> frozenset[str]:
    """Names that a template reads and does not set.

    Raises:
      ValueError: it is not jinja2.
    """
    try:
        return frozenset(jinja2.meta.find_undeclared_variables(_environment("").parse(source))) - _GLOBALS
    except jinja2.TemplateError as error:
        raise ValueError(f"the chat template cannot be read: {error}") from error


def settable(source: str) -> frozenset[str]:
    """Variables of `variables_of` that can be set from outside: the template does not set them, or asks whether they
    are defined."""
    tree = _environment("").parse(source)
    names = list(tree.find_all(jinja2.nodes.Name))
    assigned = {name.name for name in names if name.ctx == "store"}
    parameters = {name.name for name in names if name.ctx == "param"}  # of macros
    # A filter `default` and a test `is defined` ask for a name that may be missing.
    questions = [*tree.find_all(jinja2.nodes.Test), *tree.find_all(jinja2.nodes.Filter)]
    tested = {
        question.node.name
        for question in questions
        if question.name in ("defined", "undefined", "default") and isinstance(question.node, jinja2.nodes.Name)
    }
    return variables_of(source) - (assigned - tested) - parameters


_GLOBALS = frozenset(["raise_exception", "strftime_now", *jinja2.defaults.DEFAULT_NAMESPACE])


class _Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks what the assistant writes: its content, in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller):
        return caller()


@functools.lru_cache(maxsize=64)
def _compile(source: str, date: str) -> jinja2.Template:
    return _environment(date).from_string(source)


def _environment(date: str) -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(form):
        now = datetime.datetime.fromisoformat(date) if date else datetime.datetime.now()
        return now.strftime(form)

    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    environment.filters["tojson"] = tojson
    return environment
