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

from nlrl_jax.text.template import Literal, Template
from nlrl_jax.types import TextGame

PROMPTS = ("paper", "compact")
TAGS = {"paper": ("observe", "think", "plan", "action"), "compact": ("action",)}

_STATE = "\x00state\x00"

_SYSTEM = """You are an agent that plays a game, one turn at a time. Reply in at most {words} words, as XML, \
with exactly these four elements in this order and nothing after </action>:
<observe>{{what the state shows, in brief}}</observe>
<think>{{what helps you now, and what would hurt you}}</think>
<plan>{{the moves you are about to make, by name, and why they are safe}}</plan>
<action>{{{choices}}}</action>"""


def chat_prompt(
    game: TextGame,
    render_chat: Callable[[Sequence[dict[str, str]]], str],
    prompt: str,
    max_tokens: int,
) -> Template:
    """The whole prompt of a turn: the chat markup, the rules and the slots of the game's observation.

    Args:
      game: its `observation` fills the state.
      render_chat: messages -> text, up to where the reply begins (`Tokenizer.render_chat`).
      prompt: "paper" or "compact".
      max_tokens: maximum length of a reply, which the prompt states.

    Raises:
      ValueError: an unknown `prompt`, or a chat template that changes the message.
    """
    if prompt not in PROMPTS:
        raise ValueError(f"prompt {prompt!r} is not known; choose one of {', '.join(PROMPTS)}")
    if prompt == "paper":
        words = "/".join(game.actions)
        system = _SYSTEM.format(words=max_tokens, choices=f"{words} || {words} ...")
        chat = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"{game.rules}\n\n[Game State]\n{_STATE}"},
        ]
    else:
        chat = [{"role": "user", "content": f"{game.rules}\n{_STATE}"}]
    text = render_chat(chat)
    before, state, after = text.partition(_STATE)
    if not state or _STATE in after:
        raise ValueError("the chat template does not repeat the user's message exactly once")
    return Template((Literal(before),)) + game.observation + after
