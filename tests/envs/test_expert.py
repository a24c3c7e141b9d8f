"""The expert as a language model: its rates, the state of a transcript, and LAC with it."""

import dataclasses
import importlib.util
import math

import pytest

from nlrl_jax import envs
from nlrl_jax.algorithms.lac import LACConfig
from nlrl_jax.algorithms.planners import methods
from nlrl_jax.algorithms.planners.lats import LATSConfig
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.backends.usage import Usage
from nlrl_jax.config import OptionError
from nlrl_jax.envs.expert import Expert, Rates
from nlrl_jax.roles.dialogues import BAD, GOOD, UNKNOWN, Dialogue, History, Step, verdict
from nlrl_jax.run.host_games.prompts import PromptConfig, dialogue_of
from nlrl_jax.run.host_games.tasks import tasks_of
from nlrl_jax.run.lac.episodes import Setting, run_method
from nlrl_jax.types import HostGame, Outcome, Sampling, Start

ACTIONS = ("left", "right", "up", "wait")
GREEDY = Sampling(64, 0.0)
LENGTH = 6


def line_game(actions=ACTIONS) -> HostGame:
    """A line to walk to the right, `LENGTH` steps; up leads nowhere, and waiting changes nothing."""

    def step(states, moves):
        outcomes = []
        for (x, y), move in zip(states, moves, strict=True):
            x, y = x + {"right": 1, "left": -1}.get(move, 0), y + (move == "up")
            won = x == LENGTH
            outcomes.append(Outcome((x, y), f"at {x}, {y}", float(won), won, won))
        return outcomes

    return HostGame(
        "line", "Walk.", actions, 12, ("",), step=step, expert=lambda state: "right", reversible=True,
        reset=lambda tasks: [Start((0, seed), "the end", f"at 0, {seed}") for _, seed in tasks],
    )  # fmt: skip


GAME = line_game()
DIALOGUE = Dialogue.of(GAME.rules)


def after(seed, *moves):
    """The true history of a task after some moves."""
    (start,), history = GAME.reset([("", seed)]), History("the end", f"at 0, {seed}", task=("", seed))
    state = start.state
    for move in moves:
        (outcome,) = GAME.step([state], [move])
        state, history = outcome.state, history.then(Step(move, outcome.observation))
    return history


def ask(model, histories, line, sampling=GREEDY, dialogue=DIALOGUE):
    chats = [dialogue.chat(history, line) for history in histories]
    return [reply.text.strip() for reply in model.complete(chats, sampling, "any", stop=("\n",))]


def share(values):
    values = list(values)
    return sum(values) / len(values)


MANY = [after(seed) for seed in range(3000)]
NEAR = 0.03  # three standard errors of 3,000


@pytest.mark.parametrize("rate", [0.3, 0.6, 1.0])
def test_the_favourite_is_right_at_the_rate_and_its_probabilities_are_calibrated(rate):
    model = Expert(GAME, Rates(prior=rate))
    written = ask(model, MANY, "Action:")
    assert share(action == "right" for action in written) == pytest.approx(rate, abs=NEAR)
    rows = model.score([DIALOGUE.chat(h, "Action:") for h in MANY], [[f" {a}" for a in ACTIONS]] * len(MANY), "policy")
    chances = [{a: math.exp(score.log_prob) for a, score in zip(ACTIONS, row, strict=True)} for row in rows]
    assert all(max(row, key=row.get) == action for row, action in zip(chances, written, strict=True))
    assert all(sum(row.values()) == pytest.approx(1, abs=1e-4) for row in chances)
    low = [(p, action == "right") for row in chances for action, p in row.items() if p < 0.29]
    if low:
        assert share(right for _, right in low) == pytest.approx(share(p for p, _ in low), abs=NEAR)
    drawn = ask(model, [after(0)] * 3000, "Action:", Sampling(8, 1.0))
    assert share(action == written[0] for action in drawn) == pytest.approx(rate, abs=NEAR)


TRUTHS = {"right": GOOD, "left": BAD, "up": UNKNOWN, "wait": BAD}
QUICK = [(0.2, "right"), (0.5, "right"), (0.8, "right"), (1.0, "right"), (0.5, "up"), (0.8, "left"), (1.0, "wait")]


@pytest.mark.parametrize(
    "rate, move",
    [
        pytest.param(rate, move, marks=[] if (rate, move) in QUICK else pytest.mark.slow)
        for rate in (0.2, 0.5, 0.8, 1.0)
        for move in TRUTHS
    ],
)
def test_verdicts_rewards_and_probabilities_are_right_at_the_rate(rate, move):
    truth = TRUTHS[move]
    model = Expert(GAME, Rates(critic=rate))
    histories = [after(seed, move) for seed in range(3000)]
    said = [verdict(note) for note in ask(model, histories, "Critic:")]
    assert share(word == truth for word in said) == pytest.approx(rate, abs=NEAR)
    chats = [DIALOGUE.chat(h, "Critic: This step is") for h in histories]
    rows = model.score(chats, [(" GOOD", " BAD")] * len(chats), "critic")
    q = [good.log_prob - bad.log_prob for good, bad in rows]
    sign = {GOOD: 1, UNKNOWN: 0, BAD: -1}
    assert all((value > 0) - (value < 0) == sign[word] for value, word in zip(q, said, strict=True))
    size = {0.2: math.log(4), 0.5: 0.0, 0.8: math.log(4), 1.0: 9.2}[rate]
    assert all(abs(value) == pytest.approx(size, abs=0.02) for value in q if value)
    assert share(text == "0" for text in ask(model, histories, "Reward:")) == pytest.approx(rate, abs=NEAR)
    stated = ask(model, histories, "Critic: This step is GOOD. The probability that the goal is reached is")
    assert all((float(text.rstrip(".")) > 0.5) == (value > 0.02) for text, value in zip(stated, q, strict=True))


def test_values_are_the_share_of_the_way():
    right = Expert(GAME, Rates(critic=1.0))
    histories = [after(0, *["right"] * n) for n in range(LENGTH + 1)]
    shares = ["0/4", "0/4", "1/4", "2/4", "2/4", "3/4", "4/4"]
    assert ask(right, histories, "Value:") == [f"The value is {text}." for text in shares]
    wrong = ask(Expert(GAME, Rates(critic=0.0)), histories, "Value:")
    assert all(text != f"The value is {share}." for text, share in zip(wrong, shares, strict=True))


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_imagination_is_right_at_the_rate(rate):
    model = Expert(GAME, Rates(world=rate))
    seen = ask(model, MANY, "Action: right\nObservation:")
    assert share(text == f"at 1, {n}" for n, text in enumerate(seen)) == pytest.approx(rate, abs=NEAR)


def test_the_same_question_has_the_same_answer_whatever_was_asked_before():
    lines = ("Action:", "Critic:", "Value:", "Reward:", "Action: up\nObservation:")
    histories = [after(seed, "up", "right") for seed in range(40)]
    first = Expert(GAME)
    answers = {line: ask(first, histories, line) for line in lines}
    second = Expert(GAME)
    for line in reversed(lines):
        assert ask(second, histories[::-1], line) == answers[line][::-1]
    noted = [history.noted("a note is not read") for history in histories]
    assert ask(second, noted, "Action:") == answers["Action:"]


def test_a_wrong_imagination_goes_on_from_the_state_it_shows_and_a_reader_finds_it():
    model = Expert(GAME, Rates(world=0.0))
    histories = [after(seed, "right") for seed in range(50)]
    for _ in range(3):
        seen = ask(model, histories, "Action: right\nObservation:")
        histories = [h.then(Step("right", text)) for h, text in zip(histories, seen, strict=True)]
        for reader in (model, Expert(GAME, Rates(world=0.0))):  # what it has seen before plays no part
            found = [place.state for place in reader.states.find(histories)]
            assert [f"at {x}, {y}" for x, y in found] == seen
    assert all(x < 4 for x, _ in found)


def test_what_cannot_be_explained_leaves_the_state_as_thoughts_do():
    model = Expert(GAME, Rates(world=1.0))
    odd = after(3, "right").then(Step("right", "at the moon")).then(Step("think: what now?", "OK"))
    assert model.states.find([odd])[0].state == (1, 3)


def test_steps_that_a_prompt_drops_still_count():
    history = after(0, *["right"] * 5)
    short = dataclasses.replace(DIALOGUE, last=2).trim(history, 0).history
    assert len(short.steps) < 5 and Expert(GAME).states.find([short])[0].state == (5, 0)
    with pytest.raises(ValueError, match="begin at a task"):
        Expert(GAME).states.find([dataclasses.replace(history, task=None)])


def test_the_task_changes_no_prompt():
    history = after(2, *["right", "up", "up"])
    bare = History(history.goal, history.observation, history.steps)
    trimmed = [dataclasses.replace(DIALOGUE, last=1).trim(one, 0).history for one in (history, bare)]
    for one, other in ((history, bare), trimmed):
        assert DIALOGUE.chat(one, "Action:").messages == DIALOGUE.chat(other, "Action:").messages


def solved(game, model, method, tasks, **changes):
    dialogue = dialogue_of(METHODS[method], game, PromptConfig(), "expert", None, 0)
    setting = Setting(model, Usage(), game, LACConfig(**changes), LATSConfig(iterations=1))
    result = run_method(setting, method, METHODS[method], dialogue, tasks)
    assert not result["problems"]
    return [episode["success"] for episode in result["episodes"]]


def test_a_perfect_critic_solves_what_the_prior_does_not():
    tasks = [("", seed) for seed in range(20)]
    model = Expert(GAME, Rates(prior=0.4, critic=1.0, world=1.0))
    assert share(solved(GAME, model, "react", tasks)) < 0.5
    assert share(solved(GAME, model, "lac", tasks)) == 1.0
    blind = Expert(GAME, Rates(prior=0.4, critic=0.5, world=0.5))
    assert share(solved(GAME, blind, "lac", tasks)) < 0.7


@pytest.mark.parametrize("method", METHODS)
def test_every_method_reads_its_answers(method):
    tasks = [("", seed) for seed in range(3)]
    solved(GAME, Expert(GAME), method, tasks)
    solved(dataclasses.replace(GAME, actions=()), Expert(line_game(actions=())), method, tasks)


ENGINE = importlib.util.find_spec("fast_downward")
WITHOUT = pytest.mark.skipif(ENGINE is None, reason="needs ALFWorld's engine (`make alfworld`)")
ALFWORLD = pytest.param("alfworld", marks=WITHOUT)
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("babyai", "crafter")]  # their engines compile


@pytest.mark.parametrize("name", [ALFWORLD, "webshop", *SLOW])
def test_every_game_is_planned_with_its_expert(name):
    game = envs.make_host(name, 3)
    game = game.simulator or game
    tasks, model = tasks_of(game, game.kinds, 2, 0)[:2], Expert(game)
    for method in methods.default(game):
        assert len(solved(game, model, method, tasks)) == 2


def test_babyai_is_solved_with_perfect_rates():
    game = envs.make_host("babyai", 20)
    tasks = [(kind, 3) for kind in game.kinds]
    assert all(solved(game, Expert(game, Rates(1.0, 1.0, 1.0)), "react", tasks))


def test_rates():
    assert Rates.parse("") == Rates() and Rates.parse("critic=1, prior=0.25") == Rates(0.25, 1)
    assert Rates.parse(str(Rates(0.1, 0.2, 0.3))) == Rates(0.1, 0.2, 0.3)
    wrong = {
        "luck=1": "sets luck; its rates are prior, critic, world",
        "prior=2": "at most 1",
        "prior=high": "must be a number",
        "prior": "must be rate=value",
    }
    for text, error in wrong.items():
        with pytest.raises(OptionError, match=error):
            Rates.parse(text)
    with pytest.raises(ValueError, match="has no expert"):
        Expert(dataclasses.replace(GAME, expert=None))
