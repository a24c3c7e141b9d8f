"""Actions without a plan, as BALROG prompts for them: alone or after a thought, free or in tags (LAC, Table 13).

What cannot be read is counted and goes to the game as it is, where it is an invalid action.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nlrl_jax.algorithms.imagine import POLICY, Caller, write_notes
from nlrl_jax.roles.actions import read_action
from nlrl_jax.roles.dialogues import History
from nlrl_jax.rollouts.host_games import StepDecisions

FORM = 'After "Action:", write only the next action, in tags: <action>ACTION</action>.'
SHOWN = 60  # characters of a reply that is no action
_TAGS = re.compile(r"<action>(.*?)</action>", re.IGNORECASE)


def decide(caller: Caller, histories: Sequence[History], actions: Sequence[str], tagged: bool = False) -> StepDecisions:
    """One action per history, written greedily. See `lac.decide`.

    Args:
      caller: its dialogue's label is "Thought" where the model thinks before it acts.
      tagged: an action counts only inside <action> and </action>.
    """
    dialogue = caller.dialogue
    thought = write_notes(caller, caller.trim(histories, 1 + bool(dialogue.label)))
    texts = caller.lines(POLICY, [dialogue.chat(history, "Action:") for history in thought])
    picked = []
    for text in texts:
        match = _TAGS.search(text) if tagged else None
        action, problem = read_action(match[1] if match else text, actions)
        if tagged and not match:
            action, problem = "", "no tags"
        caller.count(POLICY, problem)
        # Where no action can be read the game is given what was written, or nothing if the tags are missing.
        picked.append(action or ("" if tagged else text[:SHOWN]) or "nothing")
    thinking = [{"candidates": [action]} for action in picked]
    return caller.decisions(picked, thought, thinking)
