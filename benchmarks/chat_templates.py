"""Real chat templates: what the probe finds in each, and whether conversations have the ids that transformers gives.

    python -m benchmarks.chat_templates --folder FOLDER=SOURCE --folder FOLDER=SOURCE [--table] [--check FILE]

FOLDER holds templates (*.jinja), such as `models/templates` of llama.cpp or `trl/chat_templates` of TRL; SOURCE names
it in the table. Each template is given the vocabulary of Qwen2.5 with the marks that its source writes as special
tokens. Three conversations of two replies are compared with `transformers`' rendering of the whole, tokenised at once:
with thoughts as the template has them, without thoughts, and with a call of a tool. "ids" is what differs by design:
replies that stay as they were sampled. `--table` prints the rows of docs/chat_templates.md; `--check` compares them
with a file.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tokenizers
from tokenizers import AddedToken

from nlrl_jax.lm import turns
from nlrl_jax.lm.chat_probe import DROPPED, KEPT, NEVER, RAISES, TOOL, TemplateFacts, probe
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.conversation import ConversationForm, ToolResult
from nlrl_jax.lm.conversation_plan import FRESH, IDS
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.tool_calls import ARGUMENTS, NAME
from nlrl_jax.lm.turns import ANSWERS, OBSERVATION, QUESTION, SYSTEM, THOUGHT, Message, assistant
from tests.tokenizers_from_wheels import qwen2

MARKS = re.compile(r"<[|｜/]?[A-Za-z_][^<>\s'\"{}=]*>|\[/?[A-Z_]+\]|\]~b\]|\[e~\[")
DATE = datetime.date.today().isoformat()
CALL_ENDS = ("<|observation|>", "<|eom_id|>", "<|calls|>", "<|call|>")  # end tokens of replies that call tools
END = "<|endoftext|>"  # of a template that writes no end of a reply


class Compared(NamedTuple):
    """One template. facts: of the probe. ways: by --think. ids: what was compared -> "equal", "ids" or why not."""

    name: str
    source: str
    facts: TemplateFacts
    forms: Mapping[str, ConversationForm]
    ids: Mapping[str, str]


def add_marks(backend: tokenizers.Tokenizer, text: str) -> None:
    """Adds a text's marks as control tokens; those of thoughts are tokens too, but mostly no control tokens."""
    marks = sorted({"</s>", "<s>", *MARKS.findall(text)})
    backend.add_special_tokens([mark for mark in marks if "think" not in mark])
    backend.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks if "think" in mark])


def tokenizer_of(sources: Sequence[str]) -> Tokenizer:
    """Qwen2.5's vocabulary with the marks of all templates."""
    base = qwen2()
    add_marks(base.backend, "".join(sources))
    return dataclasses.replace(base, bos_token="<s>", eos_token="</s>")


def with_template(tokenizer: Tokenizer, source: str) -> Tokenizer:
    """The tokenizer with a template, whose end of a reply ends replies."""
    tokenizer = dataclasses.replace(tokenizer, chat_template=source).with_template(TemplateOptions(date=DATE))
    facts = probe(tokenizer.renderer)
    add_marks(tokenizer.backend, facts.reply_end + facts.separator)
    added = tokenizer.backend.get_added_tokens_decoder()
    # The last mark of what ends an answer both at a chat's end and within one; else the first one of either.
    shared = tokenizer.encode(os.path.commonprefix([facts.reply_end, facts.separator]))
    tokens = [*shared[::-1], *tokenizer.encode(facts.reply_end), *tokenizer.encode(facts.separator)]
    end_id = next((token for token in tokens if token in added), tokenizer.backend.token_to_id(END))
    calls_end = [tokenizer.backend.token_to_id(mark) for mark in CALL_ENDS if mark in source]
    return dataclasses.replace(tokenizer, eos_ids=(end_id, *calls_end))


def ended(form: ConversationForm, text: str) -> tuple[int, ...]:
    """The tokens of a reply with the marks that the template ends it in, the end token last."""
    try:
        ending = form.plan.form.last_answer(assistant(ANSWERS[0])).partition(ANSWERS[0])[2]
    except ValueError:
        ending = ""
    tokens = form.tokenizer.encode(text + ending, continues=True)
    end_positions = [n for n, token in enumerate(tokens) if token in form.tokenizer.eos_ids]
    if not end_positions:
        return (*form.tokenizer.encode(text, continues=True), form.tokenizer.end_id)
    return tuple(tokens[: end_positions[0] + 1])


def theirs(form: ConversationForm, chat: Sequence[Message]) -> tuple[int, ...] | None:
    """The ids of a whole conversation as transformers renders it; None where the template refuses it."""
    from transformers.utils.chat_template_utils import render_jinja_template

    turn_form, special = form.plan.form, form.tokenizer.special_tokens
    try:
        (text,), _ = render_jinja_template(
            [list(chat)],
            tools=None if turn_form.render.tools is None else list(turn_form.render.tools),
            chat_template=form.tokenizer.chat_template,
            add_generation_prompt=True,
            **{**special, **turn_form.variables},
        )
    except Exception:  # a template is foreign code
        return None
    return tuple(form.tokenizer.backend.encode(text + turn_form.suffix, add_special_tokens=False).ids)


def compare_replies(form: ConversationForm, thinks: bool | None, blank: str = "") -> str:
    """Two replies of each kind, with a blank behind them, against transformers."""
    if form.way == FRESH:
        return FRESH
    turn_form = form.plan.form
    for reply in turn_form.replies(thinks).values():
        sampled = ended(form, reply.sampled + blank)
        tokens = form.opening(SYSTEM, QUESTION)
        for _ in range(2):
            tokens += (*sampled, *form.between(OBSERVATION, ended=True))
        observation = turn_form.observation(OBSERVATION)
        variants = []
        for message in reply.messages:
            blanked = {**message, "content": message["content"] + blank}
            variants.append(theirs(form, [*turn_form.inert_opening, *[blanked, observation] * 2]))
        if tokens not in variants:
            return IDS
    return "equal"


def compare_calls(form: ConversationForm) -> str:
    """A reply that calls a tool, and the tool's answer, against transformers; and the call is read back."""
    if form.describes_tools or form.way == FRESH:
        return "described" if form.describes_tools else FRESH
    turn_form, tokenizer = form.plan.form, form.tokenizer
    call = turns.tool_call(NAME, ARGUMENTS, turns.call_id(0))
    outcome = "not written as it is opened"
    for thought in ({"reasoning_content": THOUGHT}, {}):
        message = assistant("", tool_calls=[call], **thought)
        try:
            written_tokens = tokenizer.encode(turn_form.last_answer(message), continues=True)
        except ValueError:
            continue
        end_positions = [n for n, token in enumerate(written_tokens) if token in tokenizer.eos_ids]
        reply = tuple(
            written_tokens[: end_positions[0] + 1] if end_positions else [*written_tokens, tokenizer.eos_ids[-1]]
        )
        calls = form.read_calls(reply[form.thought_length(reply) :]).calls
        if [tuple(parsed) for parsed in calls] != [(NAME, ARGUMENTS)]:
            outcome = "not read back"
            continue
        between = form.after_calls([ToolResult(NAME, OBSERVATION)], ended=True)
        tokens = (*form.opening(SYSTEM, QUESTION), *reply, *between)
        whole = theirs(form, [*turn_form.inert_opening, message, turns.tool_reply(OBSERVATION, NAME)])
        if tokens == whole:
            return "equal"
        outcome = IDS
    return outcome


def compare(name: str, source_name: str, base: Tokenizer, source: str) -> Compared | str:
    """One template; a sentence where it is refused."""
    try:
        tokenizer = with_template(base, source)
        forms = {
            "auto": ConversationForm.of(tokenizer),
            "off": ConversationForm.of(tokenizer, thinks=False),
            "tools": ConversationForm.of(tokenizer, [TOOL]),
        }
        ids = {
            "auto": compare_replies(forms["auto"], None),
            "off": compare_replies(forms["off"], False),
            "blank": compare_replies(forms["auto"], None, " \n"),
            "tools": compare_calls(forms["tools"]),
        }
    except ValueError as error:
        return str(error)
    return Compared(name, source_name, probe(tokenizer.renderer), forms, ids)


def table(rows: Sequence[Compared]) -> list[str]:
    """Rows of Markdown; templates that do the same in all cells share one."""
    grouped: dict[tuple[str, ...], list[str]] = collections.defaultdict(list)
    for row in rows:
        grouped[cells(row)].append(f"{row.name} {row.source}")
    heads = ("template", "earlier thoughts", "default", "`off`", "calls", "refuses, changes")
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for contents, names in sorted(grouped.items(), key=lambda pair: pair[1][0].lower()):
        texts = [text.replace("|", "\\|") for text in (", ".join(names), *contents)]
        lines.append(f"| {' | '.join(texts)} |")
    return lines


def cells(row: Compared) -> tuple[str, ...]:
    """What a template does, in words of the table."""
    facts = row.facts
    fates = facts.thoughts, facts.thoughts_in_text
    thoughts = {(NEVER, KEPT): "unread", (NEVER, NEVER): "cut out of all answers"}.get(
        fates, " / ".join(dict.fromkeys(fates))
    )
    keep = ", ".join(f"`{name}={json.dumps(setting)}`" for name, setting in facts.keep_variables.items())
    thoughts += f"; {keep}" if keep else ""
    ways = {think: row.forms[think].way for think in ("auto", "off")}
    if row.forms["auto"].plan.form.in_user:
        ways["auto"] += ", rules to the user"
    kinds = {"": "refused" if facts.several_calls == RAISES else "none", "unknown": "another form"}
    calls = kinds.get(facts.calls) or f"{facts.calls} `{(facts.call_opener or '{').lstrip('`')}`"
    return thoughts, ways["auto"], ways["off"], calls, "; ".join(traps(facts))


def traps(facts: TemplateFacts) -> list[str]:
    """What a template refuses, drops or changes."""
    fates = {
        "system text": facts.system, "late system text": facts.late_system, "two users": facts.two_users,
        "tool reply without a call": facts.bare_tool_role, "no content": facts.no_content,
        **({"two calls": facts.several_calls, "string arguments": facts.string_arguments} if facts.calls else {}),
    }  # fmt: skip
    notes = []
    for verb, fate in (("refuses", RAISES), ("drops", DROPPED)):
        names = [name for name in fates if fates[name] == fate]
        notes += [f"{verb} {', '.join(names)}"] if names else []
    changes = {
        "quotes string arguments twice": facts.calls and facts.string_arguments == "quoted twice",
        "trims answers": not facts.keeps_trailing and facts.thought_in_prompt != "opened",
        "trims users": not facts.keeps_user_blanks,
        f"date {facts.date}": facts.date != "never",
        "moves the system text": facts.system == "last user message",
        "moves tools": facts.tools == "last user message",
    }
    return notes + [name for name, holds in changes.items() if holds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", action="append", required=True, help="FOLDER=SOURCE")
    parser.add_argument("--only", default="", help="templates whose name holds this")
    parser.add_argument("--table", action="store_true", help="print the rows of docs/chat_templates.md")
    parser.add_argument("--check", default="", help="a file that must hold these rows")
    options = parser.parse_args()
    templates = []
    for folder, _, source_name in (argument.partition("=") for argument in options.folder):
        paths = sorted(pathlib.Path(folder).glob("*.jinja"))
        chosen = [path for path in paths if options.only in path.stem and not path.stem.endswith("_training")]
        templates += [(path.stem, source_name, path.read_text(encoding="utf-8")) for path in chosen]
    tokenizer = tokenizer_of([source for _, _, source in templates])
    rows, counts = [], collections.defaultdict(collections.Counter)
    for name, source_name, source in templates:
        row = compare(name, source_name, tokenizer, source)
        if isinstance(row, str):
            print(f"{name}: refused: {row}")
            counts["refused"][row] += 1
            continue
        rows.append(row)
        for conversation, outcome in row.ids.items():
            counts[conversation][outcome] += 1
        ways = {think: form.way for think, form in row.forms.items()}
        counts["ways"].update(f"{think} {way}" for think, way in ways.items())
        if not options.table:
            print(f"{row.name:45} {ways}  {dict(row.ids)}")
    if options.table:
        print("\n".join(table(rows)))
    missing = set(table(rows)).difference(pathlib.Path(options.check).read_text().splitlines()) if options.check else ()
    print(f"\n{len(rows)} templates")
    for name, counter in counts.items():
        print(f"{name}: " + ", ".join(f"{outcome} {count}" for outcome, count in counter.most_common()))
    if missing:
        raise SystemExit(f"{options.check} lacks {len(missing)} rows:\n" + "\n".join(sorted(missing)))


if __name__ == "__main__":
    main()
