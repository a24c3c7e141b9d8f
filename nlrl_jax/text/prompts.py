"""The agent template T of a language agent policy: the prompt around an observation.

Departures from the paper (MS-GRPO, appendix "LAP Agent Template"):
- the sentences are ours; slots, tags, the reply skeleton and the action list are the paper's;
- the reply instructions stand in the system message, not in an assistant message after the state:
  everything static then precedes the state, so its keys and values are computed once for a whole
  batch, and the chat stays legal for templates that demand alternating roles;
- "compact" is an addition for very small models: the state and nothing else, answered by the action tag alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nlrl_jax.lm.control_tokens import MARK
from nlrl_jax.text.compile import sample_fields
from nlrl_jax.text.template import Literal, Template
from nlrl_jax.types import TextGame

PROMPTS = ("paper", "compact")
TAGS = {"paper": ("observe", "think", "plan", "action"), "compact": ("action",)}

_STATE = "\x00state\x00"

_SYSTEM = """You are playing a game, one turn at a time. Reply in at most {words} words, using exactly these four XML \
elements in this order, and write nothing after </action>:
<observe>{{a short description of the state}}</observe>
<think>{{what you should aim for and what you should avoid}}</think>
<plan>{{the actions you will take next, by name, and why they are safe}}</plan>
<action>{{{choices}}}</action>"""


def chat_prompt(
    game: TextGame,
    render_chat: Callable[[Sequence[dict[str, str]]], str],
    prompt: str,
    max_tokens: int,
) -> Template:
    """Builds the whole prompt of a turn: the chat markup, the rules and the slots of the game's observation.

    Args:
      game: its `observation` fills the state.
      render_chat: messages -> text, up to where the reply begins (`Tokenizer.render_chat`).
      prompt: "paper" or "compact".
      max_tokens: maximum length of a reply, which the prompt states.

    Raises:
      ValueError: an unknown `prompt`, or a chat template that changes the state; see `in_chat`.
    """
    if prompt not in PROMPTS:
        raise ValueError(f"prompt {prompt!r} is not known; choose one of {', '.join(PROMPTS)}")
    if prompt == "paper":
        words = "/".join(game.actions)
        system = _SYSTEM.format(words=max_tokens, choices=f"{words} || {words} ...")
        messages, heading = [{"role": "system", "content": system}], "\n\n[Game State]\n"
    else:
        messages, heading = [], "\n"

    def render(state: str) -> str:
        return render_chat([*messages, {"role": "user", "content": f"{game.rules}{heading}{state}"}])

    return in_chat(game.observation, render, game.name)


def in_chat(state: Template, render: Callable[[str], str], name: str) -> Template:
    """Renders a message with `state` in it by a chat template, text -> `render(text)`, as a template.

    Args:
      render: a pure function of the state's text. White space at its ends may get lost.
      name: the game's.

    Raises:
      ValueError: `render` does not repeat the state exactly once, or changes it.
    """
    before, marker, after = render(_STATE).partition(_STATE)
    if not marker or _STATE in after:
        raise ValueError("the chat template does not repeat the user's message exactly once")
    samples, wrong = sample_fields(state), []
    for start, end in ((False, False), (False, True), (True, False), (True, True)):
        template = Template((Literal(before),)) + state.stripped(start, end) + after
        differs = (fields for fields in samples if template.render(fields) != render(state.render(fields)))
        wrong.append(next(differs, None))
        if wrong[-1] is None:
            return template
    text = state.render(wrong[0])
    if MARK in render(text):
        raise ValueError(
            f"{name} shows {text!r}, in which this model's tokenizer sees a control token; give another observation"
        )
    raise ValueError(
        f"the chat template changes what {name} shows: of {text!r} it makes {_middle(before, render(text), after)!r}; "
        "give an observation that it leaves alone, or a model with another chat template"
    )


def _middle(before: str, text: str, after: str) -> str:
    """Cuts off what `text` has in common with `before` and `after`."""
    text = text[len(before) :] if text.startswith(before) else text
    return text[: len(text) - len(after)] if after and text.endswith(after) else text
