"""ULTRA's prompts on trajectories, shared by the games: three on each episode, one on all of them together.

A game brings its wording (`GameText`); `analyst_roles` makes the chats. The part of an episode in a prompt is an
`Excerpt`; the rule-based analysts read only that, so they know no more than a model would.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.roles.analyst_replies import ReadAction, read_reward, read_verdicts
from nlrl_jax.roles.trajectories import Action, AnalystRoles, ControlEpisode, Verdict
from nlrl_jax.types import Chat

LONGEST_ANALYSIS = 6000  # characters of a case analysis that a reward prompt repeats
CASES = 60  # critical timeslots in a case analysis, the last ones; its text says how many it leaves out
ANALYSES = 8  # case analyses in the prompt for strategies, evenly spread over the episodes
UNNAMED = 0.5  # share of a rule-based reward that is left where the case analysis does not name the timeslot
_NAMED = re.compile(r"(?<!Up to )(?<!point of )\btimeslots? (\d+(?:, \d+)*)")


@dataclasses.dataclass(frozen=True, eq=False)
class GameText:
    """One game's wording of trajectories.

    Attributes:
      system: the system message.
      game: background, states, actions and rewards, the beginning of every prompt.
      identify, analyse, reward: the instructions of these prompts.
      correction: a clause on what a corrected action looks like. outcome: how an episode ends, in a clause.
      chunk: timeslots of one identification prompt. before: timeslots shown before these.
      around: timeslots shown before and after a rated one.
      state: one observation [D] -> text.
      action: one action -> text, which `read_action` reads.
      events: further lines on an episode for the case analysis.
      ending: a sentence on the episode's end.
    """

    system: str
    game: str
    identify: str
    analyse: str
    reward: str
    correction: str
    outcome: str
    chunk: int
    before: int
    around: tuple[int, int]
    state: Callable[[np.ndarray], str]
    action: Callable[[Action], str]
    read_action: ReadAction
    events: Callable[[ControlEpisode], Sequence[str]]
    ending: Callable[[ControlEpisode], str]

    def excerpt(self, context: Mapping[str, Any]) -> Excerpt:
        """Cuts the excerpt of the identification or reward prompt with this context."""
        episode = context["episode"]
        if "timeslot" not in context:
            return Excerpt.of(episode, context["begin"] - self.before, context["end"])
        before, after = self.around
        return Excerpt.of(episode, context["timeslot"] - before, context["timeslot"] + after + 1)

    def history(self, context: Mapping[str, Any]) -> str:
        """Writes that excerpt as text."""
        excerpt, lines = self.excerpt(context), []
        for timeslot in excerpt.timeslots():
            did = f"action {self.action(excerpt.action(timeslot))}, reward {excerpt.reward(timeslot):.3g}"
            lines.append(f"timeslot {timeslot}: {self.state(excerpt.state(timeslot))}, {did}")
        if excerpt.is_final:
            lines.append(f"After timeslot {excerpt.end - 1}: {self.state(excerpt.observations[-1])}")
            lines.append(self.ending(context["episode"]))
        return "\n".join(lines)

    def cases(self, episode: ControlEpisode, verdicts: Sequence[Verdict], left_out: int) -> str:
        """Lists the critical timeslots and the episode's outcome."""
        lines = [f"(earlier critical timeslots not shown: {left_out})"] if left_out else []
        lines += [] if verdicts else ["No timeslot was found to be critical."]
        for timeslot, _, action, reason, judged in verdicts:
            better = f", better: {self.action(action)}" if action is not None else ", appropriate" if judged else ""
            state, action_text = self.state(episode.observations[timeslot]), self.action(episode.action(timeslot))
            lines.append(f"timeslot {timeslot}: {state}, action {action_text}{better}. {reason}")
        return "\n".join([*lines, *self.events(episode), self.ending(episode)])


class Excerpt(NamedTuple):
    """The timeslots [start, end) of an episode, as a prompt shows them.

    observations: float [end - start (+ 1 if `is_final`), D]. actions, rewards: [end - start, ...].
    is_final: the episode ends there; then the state after it is included.
    fell: it also terminated, by a fall or a point.
    """

    start: int
    end: int
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    is_final: bool
    fell: bool

    @classmethod
    def of(cls, episode: ControlEpisode, start: int, end: int) -> Excerpt:
        start, end = max(start, 0), min(end, len(episode))
        is_final = end == len(episode)
        observations = episode.observations[start : end + is_final]
        actions, rewards = episode.actions[start:end], episode.rewards[start:end]
        return cls(start, end, observations, actions, rewards, is_final, is_final and episode.terminated)

    def timeslots(self) -> range:
        return range(self.start, self.end)

    def state(self, timeslot: int) -> np.ndarray:
        return self.observations[timeslot - self.start]

    def reward(self, timeslot: int) -> float:
        return float(self.rewards[timeslot - self.start])

    def action(self, timeslot: int) -> Action:
        action = self.actions[timeslot - self.start]
        return int(action) if np.ndim(action) == 0 else tuple(float(x) for x in action)


def analyst_roles(text: GameText) -> AnalystRoles:
    """Makes the chats of one game."""

    def chat(prompt: str, instructions: str, episode: ControlEpisode, context: Mapping[str, Any], **slots: Any) -> Chat:
        shared = {"game": text.game, "instructions": instructions, "number": episode.number}
        shared |= {"correction": text.correction, "outcome": text.outcome}
        return Chat.of(prompt.format(**shared, **slots), text.system, **context)

    def identify(episode: ControlEpisode, start: int, end: int) -> Chat:
        context = {"episode": episode, "begin": start, "end": end}
        slots = {"begin": start, "second": min(start + 1, end - 1), "last": end - 1}
        return chat(_IDENTIFY, text.identify, episode, context, history=text.history(context), **slots)

    def analyse(episode: ControlEpisode, verdicts: Sequence[Verdict]) -> Chat:
        critical = [verdict for verdict in verdicts if verdict.critical]
        left_out = max(len(critical) - CASES, 0)
        critical = tuple(critical[left_out:])
        context = {"episode": episode, "verdicts": critical}
        return chat(_ANALYSE, text.analyse, episode, context, history=text.cases(episode, critical, left_out))

    def reward(episode: ControlEpisode, timeslot: int, action: Action, analysis: str) -> Chat:
        context = {"episode": episode, "timeslot": timeslot, "action": action, "analysis": analysis}
        actual, judged = text.action(episode.action(timeslot)), text.action(action)
        note = f" (the agent actually chose {actual}; the timeslots after it show what followed from that)"
        slots = {"timeslot": timeslot, "action": judged, "instead": "" if judged == actual else note}
        slots |= {"analysis": quoted(analysis), "history": text.history(context)}
        return chat(_REWARD, text.reward, episode, context, **slots)

    def strategies(analyses: Sequence[str]) -> Chat:
        chosen = np.unique(np.linspace(0, len(analyses) - 1, ANALYSES).round().astype(int)) if analyses else ()
        quotes = tuple(quoted(analyses[n]) for n in chosen)
        listed = "\n\n".join(f"({n}) {analysis}" for n, analysis in enumerate(quotes, 1))
        prompt = _STRATEGIES.format(game=text.game, shown=len(quotes), all=len(analyses), analyses=listed)
        return Chat.of(prompt, text.system, analyses=quotes)

    def read(reply: str, start: int, end: int) -> tuple[list[Verdict], Counter[str]]:
        return read_verdicts(reply, start, end, text.read_action)

    return AnalystRoles(text.chunk, identify, read, analyse, reward, read_reward, text.action, strategies)


_IDENTIFY = """{game}# Instructions
Below is an excerpt from episode {number}, timeslots {begin} to {last}.
{instructions}

# History
{history}

# Output format
{{timeslot {begin}, <critical or not critical>, <corrected action>, <explanation>}}, {{timeslot {second}, <...>, \
<...>, <...>}}, ..., {{timeslot {last}, <...>, <...>, <...>}}
Give one entry for every timeslot, in order. {correction}; write <none> if the timeslot is not critical or the action \
was appropriate. The explanation says why in one sentence."""
_ANALYSE = """{game}# Instructions
Below are the critical timeslots of episode {number}, with the agent's actions, an analyst's comments on them, and \
{outcome}.
{instructions}

# History
{history}

# Output format
First write {{timeslot <number>, <critical>}} for each of the timeslots that matter most, then a paragraph starting \
with "Failures:" and a paragraph starting with "Successes:"."""
_REWARD = """{game}# Instructions
Below is an excerpt from episode {number} around timeslot {timeslot}. Give a reward between -1 and 1 for the action \
{action} in timeslot {timeslot}{instead}.
{instructions}

# Case analysis
Take this analysis of the episode into account:
{analysis}

# History
{history}

# Output format
{{reward = <number>, analysis: <your analysis>}}"""
_STRATEGIES = """{game}# Instructions
Below are the case analyses of {shown} of {all} episodes that this agent has played. It is about to be trained further.
(i) Summarise which failures and which successes occur in several analyses.
(ii) Propose training strategies that address them: what to change in the agent's actions, its rewards, the states it \
learns from, or the learning itself.

# Case analyses
{analyses}

# Output format
A numbered list, the most useful strategy first: its name, then two or three sentences on what to do and which \
analyses support it."""


def verdict_text(timeslot: int, critical: bool, reason: str, better: str = "none") -> str:
    """Writes a verdict as a rule-based analyst does."""
    return f"{{timeslot {timeslot}, <{'critical' if critical else 'not critical'}>, <{better}>, <{reason}>}}"


def case_analysis(verdicts: Sequence[Verdict], failures: Sequence[str], successes: Sequence[str]) -> str:
    """Writes a case analysis as a rule-based analyst does: the last timeslots, then sentences."""
    marks = ", ".join(f"{{timeslot {verdict.timeslot}, <critical>}}" for verdict in verdicts[-12:])
    paragraphs = [" ".join(sentences or [_NONE]) for sentences in (failures, successes)]
    return f"{marks}\nFailures: {paragraphs[0]}\nSuccesses: {paragraphs[1]}"


_NONE = "None was found."


def strategies(context: Mapping[str, Any], rng: random.Random) -> str:
    """Writes the rule-based analyst's strategies: what the analyses have in common, and what follows from it."""
    analyses = context["analyses"]
    failed, succeeded = _with_entries(analyses, "Failures:"), _with_entries(analyses, "Successes:")
    slots = sum(len(named(text)) for text in analyses)
    lines = [
        f"Correct the actions in the states of the failures, which {len(failed)} of {len(analyses)} analyses have "
        f"({numbered(failed) or 'none'}).",
        f"Reward the successes, which {len(succeeded)} of them have ({numbered(succeeded) or 'none'}), and punish the "
        "failures, each as much as it matters.",
        f"Learn more often from the {slots} timeslots that the analyses name than from the others.",
    ]
    return "\n".join(f"{n}. {line}" for n, line in enumerate(lines, 1))


def _with_entries(analyses: Sequence[str], heading: str) -> list[int]:
    """Lists the numbers, from 1, of the analyses that say something under a heading."""
    parts = [text.partition(heading) for text in analyses]
    return [n for n, (_, mark, rest) in enumerate(parts, 1) if mark and not rest.strip().startswith(_NONE)]


@functools.lru_cache(1024)
def named(analysis: str) -> frozenset[int]:
    """Reads the timeslots that a case analysis names."""
    return frozenset(int(slot) for slots in _NAMED.findall(analysis) for slot in slots.split(", "))


def emphasis(analysis: str, timeslot: int) -> float:
    """Weights a rule-based reward by a case analysis: `UNNAMED` where it names other timeslots only."""
    slots = named(analysis)
    return UNNAMED if slots and timeslot not in slots else 1.0


def quoted(analysis: str) -> str:
    """Quotes a case analysis for a reward prompt: at most `LONGEST_ANALYSIS` characters and a note of the rest."""
    analysis = analysis.strip()
    rest = len(analysis) - LONGEST_ANALYSIS
    return f"{analysis[:LONGEST_ANALYSIS]} ... ({rest} more characters)" if rest > 0 else analysis or "(none)"


def numbered(slots: Iterator[int] | Sequence[int], limit: int = 12) -> str:
    """Lists the first few timeslots, and how many are left out."""
    slots = list(slots)
    omitted = len(slots) - limit
    return ", ".join(map(str, slots[:limit])) + (f" and {omitted} more" if omitted > 0 else "")
