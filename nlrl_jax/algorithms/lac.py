"""LLM-based actor-critic (LAC, algorithm 1): the model's prior, improved by its judgement of imagined futures.

One decision of B games in lockstep. pi is the prior, c a reflection, u an imagined rollout, h the history:

    c_t ~ pi(. | g, h_t)                                          reflect on the last step
    a^1 .. a^n: the likeliest of pi(. | g, h_t, c_t)              candidates
    u^i: at most `depth` steps after a^i, until a reflection says GOOD or BAD
    Q(a^i) = log P(GOOD | g, h_t, a^i, u^i) - log P(BAD | ...)    equations 1 to 3
    a_t = argmax_i pi(a^i | ...) exp(Q(a^i) / alpha)              equations 4 to 6

Left open by the paper, decided here by options (`PlanningConfig`, `LACConfig`): candidates are the best n of the game's
list, or draws where it has none; the prior is the sum over an action's tokens or their mean (its normalisation cancels
in the argmax); GOOD and BAD are scored after the "This step is" of the rollout's last reflection, each word whole, so
a word may have several tokens. Without reflections the words follow a bare "This step is". With a `floor` above 0,
which is ours, a step that the model would call neither has Q near 0.

The paper's transcripts of ALFWorld and BabyAI-Text (not those of WebShop) have thoughts among the actions, `think: ...`
with a reflection each (tables 27 and 28). Here LAC's steps are the game's actions alone: a thought has no outcome to
imagine and is on no game's list of candidates. ReAct with thoughts is `react_think`, a thought in the reflection's
place `lac_cot`.

The ablations are options (`METHODS`), and two proposals of the paper's discussion: `branch` follows several actions
from each imagined state, a tree in place of a chain, and a candidate's Q is that of its best leaf; `resample` draws
other candidates, up to so many times, as long as none has Q above 0.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from nlrl_jax.algorithms.imagine import (
    CRITIC,
    Caller,
    Candidates,
    Future,
    PlanningConfig,
    imagine,
    propose,
    write_notes,
)
from nlrl_jax.config import check, option, part
from nlrl_jax.returns import kl_improved_policy
from nlrl_jax.roles import dialogues
from nlrl_jax.roles.dialogues import Dialogue, History
from nlrl_jax.roles.written_numbers import read_share
from nlrl_jax.rollouts.host_games import StepDecisions
from nlrl_jax.types import LanguageModel, can_judge

_improved = jax.jit(kl_improved_policy)
_FLOOR = 1e-4  # a stated probability is kept this far from 0 and 1


@dataclasses.dataclass(frozen=True)
class LACConfig:
    """LAC and its ablations. Defaults: the paper's, where it gives them."""

    planning: PlanningConfig = part(PlanningConfig())
    alpha: float = option(1.0, "weight of the KL term; inf follows the prior", above=0, infinite=True)
    critic: str = option(
        "log_odds",
        "Q: log_odds (log P(GOOD) - log P(BAD)), positive (log P(GOOD) alone, A.2), direct (the model writes the "
        "probability of success, A.3: needs no log-probabilities)",
        choices=("log_odds", "positive", "direct"),
    )
    floor: float = option(
        0.0,
        "added to P(GOOD) and P(BAD), so Q stays small where both are improbable; 0 is the paper's",
        least=0,
        most=1,
    )
    rule: str = option(
        "improved",
        "action: the best by improved (prior and Q), prior (without the critic) or critic (Q alone)",
        choices=("improved", "prior", "critic"),
    )
    words: str = option("GOOD,BAD", "the words whose probabilities make Q, separated by a comma")
    branch: int = option(1, "actions followed from each imagined state; 1 is the paper's chain", least=1)
    resample: int = option(0, "how often new candidates are tried while no Q is above 0", least=0)

    def __post_init__(self):
        check(self)
        self.pair()

    def pair(self) -> tuple[str, str]:
        """The positive and the negative word."""
        words = tuple(word.strip() for word in self.words.split(","))
        if len(words) != 2 or not all(words) or words[0] == words[1]:
            raise ValueError(f"words is {self.words!r}; it must be two different words, such as GOOD,BAD")
        return words


# Figure 4, A.2, A.3, A.4 and the discussion: (changes to LACConfig, label of the notes). The built-in nano_babyai has
# read GOOD and BAD after reflections only: without rollout the sign of its Q is right in half of the cases, and
# lac_no_rollout and lac_no_reflection measure its corpus as much as the algorithm.
METHODS: Mapping[str, tuple[dict[str, Any], str]] = {
    "lac": ({}, "Critic"),
    "lac_no_critic": ({"rule": "prior"}, "Critic"),
    "lac_no_rollout": ({"depth": 0}, "Critic"),
    "lac_no_reflection": ({}, ""),
    "critic_only": ({"rule": "critic"}, "Critic"),
    "lac_positive": ({"critic": "positive"}, "Critic"),
    "lac_direct": ({"critic": "direct"}, "Critic"),
    "lac_cot": ({}, "Thought"),
    "prior_cot": ({"rule": "prior"}, "Thought"),
    "lac_tree": ({"branch": 2}, "Critic"),
    "lac_resample": ({"candidates": 3, "resample": 1}, "Critic"),
}


def decide(
    model: LanguageModel,
    dialogue: Dialogue,
    histories: Sequence[History],
    actions: Sequence[str],
    config: LACConfig,
    seed: int,
) -> StepDecisions:
    """One decision of algorithm 1 for each history.

    Args:
      dialogue: its label is "Critic" with reflections, "" without, "Thought" for chain of thought (A.4).
      actions: the game's list; empty where any text is an action.

    Returns: the actions; reflections on the last steps as notes; as thinking "candidates", "log_prior", "q", "improved"
      (probabilities), "futures" ([candidate][leaf] -> steps as lists) and, where the critic reads them, "log_good" and
      "log_bad".

    Raises:
      NotImplementedError: the model cannot score, and `config.critic` is not "direct".
    """
    if not can_judge(model) and config.critic != "direct" and config.rule != "prior":
        raise NotImplementedError(
            f"critic is {config.critic!r}, which needs log-probabilities that this model does not give; "
            "choose --critic direct"
        )
    # 1. The history, without its oldest steps where they do not fit.
    caller = Caller(model, dialogue, config.planning, seed)
    reflected = caller.trim(histories, lines_ahead(config, dialogue.label))
    # 2. c_t, the reflection on a_{t-1} (a thought may also come first)
    due = [i for i, h in enumerate(reflected) if h.steps or dialogue.label == "Thought"]
    for i, history in zip(due, write_notes(caller, [reflected[i] for i in due]), strict=True):
        reflected[i] = history
    # 3. a^1 .. a^n ~ pi(. | g, h_t, c_t)
    candidates = propose(caller, reflected, actions)
    if config.rule == "prior":
        judged = [np.zeros((len(proposal.actions), 1)) for proposal in candidates]
        futures: list[list[list[Future]]] = [[] for _ in candidates]
    else:
        # 4. Q(a^i) after an imagined rollout u^i
        judged, futures = evaluate(caller, reflected, candidates, actions, config)
        for _ in range(config.resample):
            resample(caller, reflected, candidates, judged, futures, actions, config)
    # 5. a_t = argmax pi(a^i) exp(Q(a^i) / alpha)
    q = [rows[:, 0] for rows in judged]
    improved = _improve(candidates, q, config)
    chosen = [int(np.argmax(q[i] if config.rule == "critic" else improved[i])) for i in range(len(q))]
    thinking = [
        {
            "candidates": list(candidates[i].actions),
            "log_prior": list(candidates[i].log_prior),
            "q": q[i].tolist() if config.rule != "prior" else [],
            "improved": improved[i].tolist(),
            "futures": [[[list(step) for step in leaf.imagined] for leaf in leaves] for leaves in futures[i]],
            **dict(zip(("log_good", "log_bad"), judged[i].T[1:].tolist())),
        }
        for i in range(len(q))
    ]
    picked = [candidates[i].actions[k] for i, k in enumerate(chosen)]
    return caller.decisions(picked, reflected, thinking)


def resample(
    caller: Caller,
    histories: Sequence[History],
    candidates: list[Candidates],
    judged: list[np.ndarray],
    futures: list[list[list[Future]]],
    actions: Sequence[str],
    config: LACConfig,
) -> None:
    """Adds other candidates, their values and futures, to the games whose best Q is not above 0, as long as their list
    of actions has any left."""
    bad = [i for i, rows in enumerate(judged) if rows[:, 0].max() <= 0 and 0 < len(actions) > len(rows)]
    if not bad:
        return
    extra = propose(caller, [histories[i] for i in bad], actions, [candidates[i].actions for i in bad])
    values, rollouts = evaluate(caller, [histories[i] for i in bad], extra, actions, config)
    for k, i in enumerate(bad):
        candidates[i] = Candidates(*map(operator.add, candidates[i], extra[k]))
        judged[i] = np.concatenate([judged[i], values[k]])
        futures[i] = futures[i] + rollouts[k]


def lines_ahead(config: LACConfig, label: str) -> int:
    """Lines that a decision adds to its history, which the context has room for; 0 is a rollout's.

    A note where there is a label, and an action; where Q is read without rollout, its verdict too.
    """
    prior = config.rule == "prior"
    return 1 + bool(label) + (not prior) if prior or not config.planning.depth else 0


def evaluate(
    caller: Caller,
    histories: Sequence[History],
    candidates: Sequence[Candidates],
    actions: Sequence[str],
    config: LACConfig,
) -> tuple[list[np.ndarray], list[list[list[Future]]]]:
    """The rows of `critic` for every candidate (equation 3), of its best leaf: float64 [n, columns] for each game, and
    the futures [n][leaves] that they were read from."""
    dialogue = caller.dialogue
    pairs = [(i, action) for i, proposal in enumerate(candidates) for action in proposal.actions]
    words = config.pair()

    def decided(step):
        return dialogues.verdict(step.note, (*words, dialogues.UNKNOWN)) in map(str.upper, words)

    if config.planning.depth:
        first = [histories[i] for i, _ in pairs], [action for _, action in pairs]
        rollouts = imagine(caller, *first, actions, decided, config.branch)
        chats = [[_judged(dialogue, leaf.history, "", config) for leaf in leaves] for leaves in rollouts]
    else:  # without rollout: the critic speaks right after the action
        rollouts = [[] for _ in pairs]
        chats = [[_judged(dialogue, histories[i], f"Action: {action}\n", config)] for i, action in pairs]
    # One call for the leaves of all candidates of all games; the values are dealt out again in the same order.
    values = iter(critic(caller, [chat for row in chats for chat in row], config))
    # Tuples compare by Q first, so that the maximum is the row of the best leaf.
    best, leaves = iter([max(next(values) for _ in row) for row in chats]), iter(rollouts)
    judged = [np.array([next(best) for _ in proposal.actions]) for proposal in candidates]
    return judged, [[next(leaves) for _ in proposal.actions] for proposal in candidates]


def _judged(dialogue: Dialogue, history: History, pending: str, config: LACConfig):
    """The chat whose continuation is the judgement of the last step."""
    reflection = ""
    if dialogue.label == "Critic" and not pending:
        reflection, history = history.last_note, history.noted("")
    question = f"{reflection} {dialogues.PROBABILITY}".strip()
    line = question if config.critic == "direct" else dialogues.before_verdict(reflection)
    return dialogue.chat(history, f"{pending}Critic: {line}")


def critic(caller: Caller, chats: Sequence, config: LACConfig) -> list[tuple[float, ...]]:
    """(Q, log P(GOOD), log P(BAD)) of chats that are open where the judgement stands: equation 2, or its alternatives,
    A.2 and A.3, of which the last has Q alone. A `floor` is in Q, not in the other two."""
    if config.critic == "direct":
        values = []
        for text in caller.lines(CRITIC, chats):
            p = read_share(text)
            caller.count(CRITIC, "" if p is not None else "no number")
            # Q = logit(p); an unread number is 0.5, which neither helps nor harms.
            p = 0.5 if p is None else min(max(p, _FLOOR), 1 - _FLOOR)
            values.append((math.log(p / (1 - p)),))
        return values
    good, bad = config.pair()
    rows = word_log_probs = caller.log_probs(CRITIC, chats, [(f" {good}", f" {bad}")] * len(chats))
    if config.floor:
        # log(p + floor), without leaving log space.
        rows = np.logaddexp(np.reshape(rows, (-1, 2)), math.log(config.floor)).tolist()

    def value(good, bad):
        return good if config.critic == "positive" else 0.0 if good == bad else good - bad

    return [(value(*row), *words) for row, words in zip(rows, word_log_probs, strict=True)]


def _improve(candidates: Sequence[Candidates], q: Sequence[np.ndarray], config: LACConfig) -> list[np.ndarray]:
    """Probabilities of the improved policy over each game's candidates (equations 5 and 6)."""
    rows, n = (1 << (size - 1).bit_length() for size in (len(q), max(map(len, q))))  # few shapes, as each is compiled
    # [prior or Q, game, candidate]: games have different numbers of candidates; a prior of -inf leaves a place out.
    table = np.full((2, rows, n), [[[-np.inf]], [[0.0]]], np.float32)
    for i, proposal in enumerate(candidates):
        table[0, i, : len(proposal.actions)], table[1, i, : len(proposal.actions)] = proposal.log_prior, q[i]
    log_probs = np.asarray(_improved(*table, np.float32(config.alpha)))
    return [np.exp(log_probs[i, : len(proposal.actions)].astype(np.float64)) for i, proposal in enumerate(candidates)]
