"""LAC's loop closed on the corridor of test_lac: its prior prefers the wrong way, and learns better from its critic."""

import math
from collections import Counter, defaultdict

import pytest

from nlrl_jax.algorithms import lac, lac_iteration
from nlrl_jax.algorithms.lac import METHODS, LACConfig
from nlrl_jax.algorithms.lac_iteration import LessonConfig, drawn, prior_apart
from nlrl_jax.config import replace
from nlrl_jax.roles.dialogues import Dialogue, History
from nlrl_jax.rollouts.host_games import play
from nlrl_jax.run.lac.episodes import as_json
from nlrl_jax.types import Score
from tests.algorithms.corridor import ACTIONS, GAME, GOAL, PRIOR, TASKS, Corridor

CONFIG = replace(LACConfig(), candidates=3, depth=1)
DIALOGUE = Dialogue.of("Reach 3.")


class Learned(Corridor):
    """A corridor's model whose prior is the weights that it was taught after a prompt, and `PRIOR` elsewhere."""

    def __init__(self, examples=()):
        super().__init__()
        self.table = defaultdict(Counter)
        for chat, pieces in examples:
            text = chat.messages[-1]["content"]
            for piece in pieces:
                if piece.learned:
                    self.table[text][piece.text.strip()] += piece.learned
                text += piece.text

    def score(self, chats, continuations, role):
        if role != "policy":
            return super().score(chats, continuations, role)
        known = [self.table.get(chat.messages[-1]["content"], PRIOR) for chat in chats]
        totals = [max(sum(prior.values()), 1.0) for prior in known]  # what was taught are weights
        return [
            [Score(math.log(prior.get(text.strip(), 0) / total + 1e-9), 1) for text in row]
            for prior, total, row in zip(known, totals, continuations, strict=True)
        ]


def played(model, method="lac", config=CONFIG, dialogue=DIALOGUE):
    changes, _ = METHODS[method]
    decide = lambda histories, t: lac.decide(model, dialogue, histories, ACTIONS, replace(config, **changes), t)
    return [as_json(episode) for episode in play(GAME, decide, TASKS)]


IMPROVED = LessonConfig()


def teach(episodes, lesson=IMPROVED, config=CONFIG, dialogue=DIALOGUE):
    return lac_iteration.teach(dialogue, episodes, lesson, config)


def weights(examples):
    """{(transcript before an action, action): weight}."""
    return {key: value for key, value in each(examples)}


def each(examples):
    for chat, pieces in examples:
        text = chat.messages[-1]["content"]
        for piece in pieces:
            if piece.learned:
                yield (text, piece.text.strip()), piece.learned
            text += piece.text


def test_the_prior_learns_what_its_critic_prefers():
    model = Corridor()
    assert not any(one["success"] for one in played(model, "lac_no_critic"))
    episodes = played(model)
    assert all(one["success"] for one in episodes)
    for lesson in ("improved", "chosen"):
        student = Learned(teach(episodes, LessonConfig(lesson)))
        assert all(one["success"] for one in played(student, "lac_no_critic")), lesson


def test_candidates_are_weighted_by_the_closed_form():
    (episode, _) = played(Corridor())
    found = weights(teach([episode], LessonConfig(least=0.0)))
    assert len(found) == 3 * len(episode["steps"]) == 6
    start = f"Goal of the agent: 3\nObservation: {episode['observation']}\nAction:"
    log_odds = lambda x: 1 - abs(GOAL - x)  # of Corridor.good, one step ahead
    raw = {a: PRIOR[a] * math.exp(log_odds(x)) for a, x in {"left": 0, "right": 2, "wait": 1}.items()}
    for action, value in raw.items():
        assert found[start, action] == pytest.approx(value / sum(raw.values()), rel=1e-5)
    kept = weights(teach([episode], LessonConfig(least=0.2)))
    assert kept == {key: value for key, value in found.items() if value >= 0.2} and len(kept) < len(found)


@pytest.mark.parametrize("room", [0, 400])
def test_lessons_stand_where_decisions_asked(room):
    model = Corridor()
    dialogue = Dialogue.of("", compact=True, room=room, count=len)
    config = replace(CONFIG, line_tokens=40, rule="prior")
    episodes = played(model, "lac_no_critic", config, dialogue)  # they fail, so they run to the horizon
    asked = [chat.messages[-1]["content"] for role, chat in model.asked if role == "policy"]
    found = {text for text, _ in weights(teach(episodes, config=config, dialogue=dialogue))}
    assert found == set(asked)
    cut = [text for text in asked if "Observation: at 1" not in text]
    assert bool(cut) == bool(room)


def test_failures_are_left_out_if_asked():
    failed, won = played(Corridor(), "lac_no_critic")[0], played(Corridor())[0]
    lessons = lambda given, *config: list(each(teach(given, LessonConfig("chosen", *config))))
    assert lessons([failed, won], "successes") == lessons([won]) != lessons([failed, won])
    assert teach([failed], LessonConfig("chosen", "successes")) == []


def test_draws_follow_the_improved_policy():
    start = [History("3", "at 1")] * 2000
    made = lac.decide(Corridor(), DIALOGUE, start, ACTIONS, CONFIG, 0)
    counts = Counter(drawn(made, 3).actions)
    record = made.thinking[0]
    for action, p in zip(record["candidates"], record["improved"], strict=True):
        assert counts[action] / 2000 == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 2000))
    assert drawn(made, 3).actions == drawn(made, 3).actions != drawn(made, 4).actions


def test_an_adapter_for_actions_leaves_the_critic_alone():
    student = Learned(teach(played(Corridor()), LessonConfig("chosen")))
    student.write = student.good = None  # nothing but actions may be asked
    base = Corridor()
    model = prior_apart(student, base)
    student.complete = lambda chats, *args, **kwargs: base.complete(chats, *args, **kwargs)
    assert all(one["success"] for one in played(model))
    assert {role for role, _ in base.roles} >= {"critic", "world model", "note"}
    assert "critic" not in {role for role, _ in student.roles}


def test_episodes_without_an_improved_policy_are_refused():
    (episode, _) = played(Corridor())
    bare = {**episode, "thinking": [{}] * len(episode["thinking"])}
    with pytest.raises(ValueError, match="no improved policy"):
        teach([bare], LessonConfig())
