"""What `chat_probe` finds of a chat template, in sentences for a person: `nlrl-jax inspect` prints them."""

from __future__ import annotations

import json

from nlrl_jax.lm.chat_probe import DROPPED, KEPT, NEVER, RAISES, SHOWN, TemplateFacts


def sentences(facts: TemplateFacts) -> dict[str, str]:
    """The facts for a person: label -> sentence."""
    fates = {SHOWN: "shown", DROPPED: "dropped without a word", RAISES: "refused"}
    thoughts = _thoughts(facts)
    switch = f"turned on and off by {facts.switch}" if facts.switch else "no switch"
    keep = ", ".join(f"{name}={json.dumps(setting)}" for name, setting in facts.keep_variables.items())
    prompt = {"opened": "; it opens a thought", "closed": "; it holds a thought that is over"}.get(
        facts.thought_in_prompt
    )
    without = " (those without a thought)" if facts.thought_in_prompt == "opened" else ""
    otherwise = f"are written otherwise in later turns{without}"
    blanks = [
        f"{'kept' if is_kept else 'trimmed'} {side} an answer"
        for side, is_kept in (("before", facts.keeps_leading), ("after", facts.keeps_trailing))
    ]
    rules = {
        "role": "a role of its own", "first user message": "put into the first user message",
        "last user message": "put into the last user message, so that it moves with each turn", **fates,
    }  # fmt: skip
    forms = {
        "": "not written", "unknown": "written in a form that is not known here", "json": "JSON",
        "named": "a name and JSON", "tagged": "in tags", "python": "in Python", "keyed": "JSON by name",
        "bare": "a name and bare keys",
    }  # fmt: skip
    call_words = forms[facts.calls] + (f" after {facts.call_opener}" if facts.call_opener else "")
    several = {SHOWN: "several in a reply", DROPPED: "one in a reply", RAISES: "one in a reply, more are refused"}
    strings = {SHOWN: "shown", "quoted twice": "quoted twice", RAISES: "refused", DROPPED: "not shown"}
    more_calls = f"{several[facts.several_calls]}; arguments as a string: {strings[facts.string_arguments]}"
    described = {
        "generation prompt": f"ends in {facts.prompt_end!r}{prompt or ''}",
        "end of a reply": f"{facts.reply_end!r}",
        "between turns": f"{facts.separator!r}" if facts.separator else "depends on the turn or the reply",
        "earlier replies": "stay as they were" if facts.appends else otherwise,
        "blanks": f"{', '.join(blanks)}; a user's text is {'kept' if facts.keeps_user_blanks else 'trimmed'}",
        "thoughts": f"{thoughts}; {switch}" + (f"; kept with {keep}" if keep else ""),
        "system text": f"{rules[facts.system]}; a later one is {fates[facts.late_system]}",
        "two users in a row": fates[facts.two_users],
        "tools": {
            "beginning": "offered at the beginning", DROPPED: "not offered",
            "last user message": "offered before the last user message, so that they move with each turn",
        }[facts.tools],
        "calls": f"{call_words}; {more_calls}" if facts.calls else call_words,
        "role tool": f"after a call {fates[facts.tool_role]}, without one {fates[facts.bare_tool_role]}",
        "no content": {SHOWN: "nothing is written", RAISES: "refused: send an empty text"}.get(
            facts.no_content, facts.no_content
        ),
        "today's date": f"printed {facts.date}" if facts.date != "never" else "never printed",
        "variables": ", ".join(facts.variables) or "none",
    }  # fmt: skip
    errors = [f"{case}: {message}" for case, message in facts.errors.items()]
    return described | ({"what it refuses": "; ".join(errors)} if errors else {})


def _thoughts(facts: TemplateFacts) -> str:
    fates = facts.thoughts, facts.thoughts_in_text
    if fates == (NEVER, KEPT):
        return "nothing to it: a field for them is not read, and their marks in a text are kept"
    if fates == (NEVER, NEVER):
        return "cut out of every answer"
    return fates[0] if fates[0] == fates[1] else f"in a field of the message {fates[0]}, in its text {fates[1]}"
