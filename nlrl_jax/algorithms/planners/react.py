"""ReAct: the action that the model writes, without look-ahead, with or without thoughts (LAC, C.2.1).

A thought is an action "think: ..." whose observation is "OK"; the game does not see it. The paper sets no limit to
thoughts; here an action is asked for again after at most two of them (`THOUGHTS`), and a third is counted and replaced.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nlrl_jax.algorithms.imagine import POLICY, Caller, any_action
from nlrl_jax.roles.dialogues import THINK, THINK_REPLY, History, Step
from nlrl_jax.roles.messages import ChatDialogue
from nlrl_jax.rollouts.host_games import StepDecisions

THOUGHTS = 2  # maximum number per decision


def decide(caller: Caller, histories: Sequence[History], actions: Sequence[str]) -> StepDecisions:
    """One action per history, written greedily. What cannot be read becomes a random action and is counted.

    Returns: see `lac.decide`. The caller's dialogue has no note.
    """
    if isinstance(caller.dialogue, ChatDialogue):
        return _by_messages(caller, histories, actions)
    rng = np.random.default_rng(caller.seed)
    short, thoughts = caller.trim(histories, 1), [[] for _ in histories]
    chosen: dict[int, str] = {}
    for _ in range(THOUGHTS + 1):
        waiting = [i for i in range(len(short)) if i not in chosen]
        texts = caller.lines(POLICY, [caller.dialogue.chat(short[i], "Action:") for i in waiting])
        for i, text in zip(waiting, texts, strict=True):
            if text.startswith(THINK):
                short[i] = short[i].then(Step(text, THINK_REPLY))
                thoughts[i].append(text)
            else:
                chosen[i] = caller.action(text, actions, rng)
    for i in range(len(short)):
        if i not in chosen:
            caller.count(POLICY, "too many thoughts")
            chosen[i] = any_action(actions, rng)
    picked = [chosen[i] for i in range(len(short))]
    thinking = [{"candidates": [action]} for action in picked]
    return caller.decisions(picked, short, thinking, thoughts)


def _by_messages(caller: Caller, histories: Sequence[History], actions: Sequence[str]) -> StepDecisions:
    """`decide` in a chat: a reply is a whole message, which later prompts show."""
    rng = np.random.default_rng(caller.seed)
    short = caller.trim(histories, 1)
    replies = caller.replies(POLICY, [caller.dialogue.chat(history, "Action:") for history in short], stop=())
    picked = []
    for reply in replies:
        action, problem = caller.dialogue.read(reply.text)
        caller.count(POLICY, problem)
        picked.append(any_action(actions, rng) if problem and actions else action)
    noted = [history.noted(reply.text) for history, reply in zip(short, replies, strict=True)]
    return caller.decisions(picked, noted, [{"candidates": [action]} for action in picked])
