"""The analyst of ULTRA: a language model identifies critical states, analyses each case and assigns rewards."""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nlrl_jax.files import write_json
from nlrl_jax.roles.analyst_replies import written_reward
from nlrl_jax.roles.thoughts import without_thoughts
from nlrl_jax.roles.trajectories import Action, AnalystRoles, ControlEpisode, Verdict
from nlrl_jax.types import Chat, LanguageModel, LanguageModelError, Reply, Sampling

T = TypeVar("T")
SAMPLINGS = {  # of the replies in each role
    "identify": Sampling(4096, 0.0),
    "analyse": Sampling(1024, 0.0),
    "reward": Sampling(512, 0.0),
    "strategies": Sampling(1024, 0.0),
}
FIRST = 16  # replies that are read before all others are requested
_EXCERPT = 300  # characters of a reply in an error


class CriticalState(NamedTuple):
    """A critical timeslot of an episode, with the analyst's replies on it.

    verdict: action and explanation. observation: float [D]. taken: the agent's action.
    rewards: {action: r^LLM}, of the action taken and of the one suggested. reasons: {action: the reply}.
    """

    episode: int
    verdict: Verdict
    observation: np.ndarray
    taken: Action
    rewards: dict[Action, float]
    reasons: dict[Action, str]


class Findings(NamedTuple):
    """The analysis of N episodes.

    states: the critical states, by episode and time. analyses: the case analysis of each episode.
    counts: calls, verdicts and faults of replies, by kind.
    strategies: what the analyst proposes for the refinement (section 4.2); for people to read, no code does.
    """

    states: list[CriticalState]
    analyses: list[str]
    counts: dict[str, int]
    strategies: str = ""


class Analyst(NamedTuple):
    """A language model in the analyst's roles; `counts` grows with its replies. must_read: see `analyse`."""

    roles: AnalystRoles
    model: LanguageModel
    seed: int
    must_read: bool
    counts: Counter[str]


def identify(analyst: Analyst, episodes: Sequence[ControlEpisode]) -> list[list[Verdict]]:
    """Section 3.3: the verdicts on every episode, in order of time. All chunks of all episodes in one call."""
    roles, counts = analyst.roles, analyst.counts
    # Long episodes are shown in chunks of timeslots [first, end).
    pieces = [
        (episode, start, min(start + roles.chunk, len(episode)))
        for episode in episodes
        for start in range(0, len(episode), roles.chunk)
    ]
    chats = [roles.identify(*piece) for piece in pieces]
    verdicts: dict[int, list[Verdict]] = {episode.number: [] for episode in episodes}

    def read_verdicts(piece, text):
        return roles.read_verdicts(text, *piece[1:])

    identified = _complete(analyst, "identify", chats, pieces, read_verdicts, lambda answer: bool(answer[0]))
    for (episode, first, end), (reply, (here, problems)) in zip(pieces, identified, strict=True):
        verdicts[episode.number] += here
        counts["identify/calls"] += 1
        counts["identify/never ended"] += not reply.ended
        counts["identify/timeslots"] += end - first
        counts["identify/critical"] += sum(verdict.critical for verdict in here)
        counts["identify/suggestions"] += sum(v.critical and v.action is not None for v in here)
        counts.update({f"identify/{kind}": number for kind, number in problems.items()})
    return [verdicts[episode.number] for episode in episodes]


def assign_rewards(
    analyst: Analyst,
    episodes: Sequence[ControlEpisode],
    verdicts: Sequence[Sequence[Verdict]],
    analyses: Sequence[str],
) -> list[CriticalState]:
    """r^LLM(s, a) of the action taken in each critical state, and of the one suggested for it, in one call."""
    roles, counts = analyst.roles, analyst.counts
    ratings: list[tuple[ControlEpisode, Verdict, Action, str]] = []
    for episode, of_episode, analysis in zip(episodes, verdicts, analyses, strict=True):
        # The agent's own action is rated in any case, and the suggested one where it is another.
        for verdict in of_episode:
            if verdict.critical:
                agent_action = episode.action(verdict.timeslot)
                actions = [agent_action] if verdict.action is None else dict.fromkeys([agent_action, verdict.action])
                ratings += [(episode, verdict, action, analysis) for action in actions]
    chats = [roles.reward(episode, verdict.timeslot, *rest) for episode, verdict, *rest in ratings]
    states: dict[tuple[int, int], CriticalState] = {}

    def read_reward(rating, text):
        return roles.read_reward(text)

    answers = _complete(analyst, "reward", chats, ratings, read_reward, lambda reward: reward is not None)
    for (episode, verdict, action, _), (reply, reward) in zip(ratings, answers, strict=True):
        t = verdict.timeslot
        # Two ratings of one timeslot belong to one critical state.
        state = states.setdefault(
            (episode.number, t),
            CriticalState(episode.number, verdict, episode.observations[t], episode.action(t), {}, {}),
        )
        counts["reward/calls"] += 1
        counts["reward/unreadable"] += reward is None
        counts["reward/clipped"] += reward is not None and written_reward(reply.text) != reward
        state.reasons[action] = reply.text
        if reward is not None:
            state.rewards[action] = reward
    return list(states.values())


def analyse(
    episodes: Sequence[ControlEpisode],
    roles: AnalystRoles,
    model: LanguageModel,
    seed: int = 0,
    verdicts: Sequence[Sequence[Verdict]] | None = None,
    must_read: bool = False,
) -> Findings:
    """Identification, case analysis, rewards and strategies of N episodes: four calls to the model.

    Args:
      verdicts: of each episode, where they do not come from the language model (MASK-R).
      must_read: most replies of each role must say something; `FIRST` of them are requested before the others.

    Raises:
      LanguageModelError: they do not.
    """
    analyst = Analyst(roles, model, seed, must_read, Counter())
    counts = analyst.counts
    has_verdicts = verdicts is not None
    if not has_verdicts:
        verdicts = identify(analyst, episodes)
    chats = [roles.analyse(episode, of_episode) for episode, of_episode in zip(episodes, verdicts, strict=True)]

    def read_analysis(episode, text):
        return without_thoughts(text)

    answers = _complete(analyst, "analyse", chats, episodes, read_analysis, lambda text: bool(text.strip()))
    analyses = [text for _, text in answers]
    counts["analyse/calls"] += len(chats)
    counts["analyse/empty"] += sum(not text.strip() for text in analyses)
    states = assign_rewards(analyst, episodes, verdicts, analyses)
    proposed = ""
    if roles.strategies is not None and not has_verdicts:
        reply = model.complete([roles.strategies(analyses)], SAMPLINGS["strategies"], "strategies", seed)[0]
        proposed = without_thoughts(reply.text).strip()
        counts["strategies/calls"] += 1
    return Findings(states, analyses, dict(counts), proposed)


def _complete(
    analyst: Analyst,
    role: str,
    chats: Sequence[Chat],
    subjects: Sequence[Any],
    reader: Callable[[Any, str], T],
    is_read: Callable[[T], bool],
) -> list[tuple[Reply, T]]:
    """The replies to all chats as they are and as read.

    Args:
      subjects: what each chat is about.
      reader: (subject, reply's text) -> what it says. is_read: whether that is anything.

    Raises:
      LanguageModelError: more than half of the first ones, or of all, cannot be read.
    """
    answers: list[tuple[Reply, T]] = []
    # A model whose replies cannot be read is found out by the first ones, before all others are paid for.
    for part in (slice(0, FIRST), slice(FIRST, None)) if analyst.must_read else (slice(None),):
        replies = analyst.model.complete(chats[part], SAMPLINGS[role], role, analyst.seed) if chats[part] else []
        answers += [
            (reply, reader(subject, reply.text)) for subject, reply in zip(subjects[part], replies, strict=True)
        ]
        bad = [reply for reply, content in answers if not is_read(content)]
        if analyst.must_read and 2 * len(bad) > len(answers):
            raise LanguageModelError(_unreadable(role, bad, len(answers)))
    return answers


def _unreadable(role: str, bad: Sequence[Reply], of: int) -> str:
    first = bad[0]
    text = " ".join(first.text.split())
    excerpt = repr(text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}...") if text else "empty"
    cause = " (refused)" if first.refused else "" if first.ended else " (cut at its maximum length)"
    return (
        f"the analyst cannot be used: {len(bad)} of its first {of} replies as {role!r} cannot be read, the first one "
        f"is {excerpt}{cause}. Nothing is refined: give another --analyst or --endpoint_model in a new --run_dir; "
        "--base with this folder reuses its base agents"
    )


def save(findings: Findings, path: pathlib.Path) -> None:
    """Writes JSON."""
    states = [
        {
            "episode": state.episode,
            "timeslot": state.verdict.timeslot,
            "suggested": state.verdict.action,
            "explanation": state.verdict.explanation,
            "judged": state.verdict.judged,
            "observation": np.asarray(state.observation, np.float64).tolist(),
            "taken": state.taken,
            "rewards": list(state.rewards.items()),
            "reasons": list(state.reasons.items()),
        }
        for state in findings.states
    ]
    summary = {"counts": findings.counts, "analyses": findings.analyses, "strategies": findings.strategies}
    write_json(path, {**summary, "states": states})


def load(path: pathlib.Path) -> Findings:
    """The findings that `save` wrote.

    Raises:
      ValueError: another kind of file, or a number in it that is not finite.
    """
    try:
        stored = json.loads(path.read_text(), parse_constant=_refuse)
        states = [
            CriticalState(
                state["episode"],
                _verdict(state),
                np.asarray(state["observation"], np.float32),
                _action(state["taken"]),
                {_action(action): reward for action, reward in state["rewards"]},
                {_action(action): text for action, text in state["reasons"]},
            )
            for state in stored["states"]
        ]
        return Findings(states, stored["analyses"], stored["counts"], stored.get("strategies", ""))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not hold an analyst's findings ({error}); delete it to analyse again") from error


def _verdict(state: dict[str, Any]) -> Verdict:
    """The verdict of a stored state; older files have no "judged"."""
    judged = state.get("judged", True)
    return Verdict(state["timeslot"], True, _action(state["suggested"]), state["explanation"], judged)


def _action(stored: Any) -> Action | None:
    return tuple(stored) if isinstance(stored, list) else stored


def _refuse(constant: str) -> float:
    raise ValueError(f"it holds {constant}")
