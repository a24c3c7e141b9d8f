"""The agent template T of a language agent policy: what is said to the model around an observation.

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

# One wording after the other for `num_templates`; the first is the one that is evaluated.
_SYSTEMS = (
    """You are an agent that plays a game, one turn at a time. Reply in at most {words} words, as XML, \
with exactly these four elements in this order and nothing after </action>:
<observe>{{what the state shows, in brief}}</observe>
<think>{{what helps you now, and what would hurt you}}</think>
<plan>{{the moves you are about to make, by name, and why they are safe}}</plan>
<action>{{{choices}}}</action>""",
    """A game is played turn by turn, and you decide the moves. Write XML of at most {words} words: the four \
elements below, once each, in this order, and stop after </action>.
<observe>{{the state as you see it}}</observe>
<think>{{chances and dangers of the next moves}}</think>
<plan>{{which moves you choose, by name}}</plan>
<action>{{{choices}}}</action>""",
    """Your task is to play well. Look first, weigh what could go wrong, decide, then act. Answer with exactly \
this structure, {words} words or fewer, and no text behind it:
<observe>{{facts of the state that matter}}</observe>
<think>{{where each direction would lead}}</think>
<plan>{{your next moves by name, and what they aim at}}</plan>
<action>{{{choices}}}</action>""",
)
_COMPACT = ("{rules}\n{state}", "{state}\n{rules}", "Rules: {rules}\nBoard:\n{state}")
WORDINGS = len(_SYSTEMS)


def chat_prompt(
    game: TextGame,
    render_chat: Callable[[Sequence[dict[str, str]]], str],
    prompt: str,
    max_tokens: int,
    wording: int = 0,
) -> Template:
    """The whole prompt of a turn: the chat markup, the rules and the slots of the game's observation.

    Args:
      game: its `observation` fills the state.
      render_chat: messages -> text, up to where the reply begins (`Tokenizer.render_chat`).
      prompt: "paper" or "compact".
      max_tokens: what the reply may take; told to the model.
      wording: 0 to `WORDINGS` - 1: the same content in other words.

    Raises:
      ValueError: an unknown `prompt` or `wording`, or a chat template that does not keep the message as it was given.
    """
    if prompt not in PROMPTS:
        raise ValueError(f"prompt {prompt!r} is not known; choose one of {', '.join(PROMPTS)}")
    if not 0 <= wording < WORDINGS:
        raise ValueError(f"wording {wording} is not known; there are {WORDINGS}, counted from 0")
    if prompt == "paper":
        words = "/".join(game.actions)
        system = _SYSTEMS[wording].format(words=max_tokens, choices=f"{words} || {words} ...")
        chat = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"{game.rules}\n\n[Game State]\n{_STATE}"},
        ]
    else:
        chat = [{"role": "user", "content": _COMPACT[wording].format(rules=game.rules, state=_STATE)}]
    text = render_chat(chat)
    before, found, after = text.partition(_STATE)
    if not found or _STATE in after:
        raise ValueError("the chat template does not repeat the user's message exactly once")
    return Template((Literal(before),)) + game.observation + after
