"""The shopper by rule and the reader behind it: both know the text of a transcript and nothing else."""

import math
import random

import pytest

import envs
from envs.webshop import engine, reading
from envs.webshop.shopper import Shopper
from nlrl_jax.algorithms.lac import LACConfig
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.backends.usage import Metered, Usage
from nlrl_jax.roles.dialogues import Dialogue, History, Step, verdict
from nlrl_jax.run import planning
from nlrl_jax.types import Chat, Sampling

GAME = envs.make_host("webshop")
DIALOGUE = Dialogue.of(GAME.rules)
PAGES = {
    engine.SEARCH: "search",
    engine.RESULTS: "results",
    engine.ITEM: "item",
    engine.SUB: "sub",
    engine.DONE: "done",
}


def wander(seed, steps=14):
    """A visit at random, with impossible actions: (history, state) behind each action."""
    rng = random.Random(seed)
    (start,) = GAME.reset([("", seed)])
    state, history = start.state, History(start.goal, start.observation)
    yield history, state
    for _ in range(steps):
        view = reading.read(DIALOGUE.text(history) + "\nAction:").view
        options = [*(f"click[{button}]" for button in view.buttons()), "search[shoes]", "click[nothing]"]
        action = rng.choice([one for one in options if engine.BUY not in one or rng.random() < 0.3])
        (outcome,) = GAME.step([state], [action])
        state, history = outcome.state, history.then(Step(action, outcome.observation))
        yield history, state
        if outcome.done:
            return


def test_the_reader_knows_from_the_text_where_the_shopper_is():
    seen = set()
    for seed in range(12):
        for history, state in wander(seed):
            view = reading.read(DIALOGUE.text(history) + "\nAction:").view
            seen.add(state.page)
            assert view.page == PAGES[state.page], history.steps[-1]
            if state.page == engine.RESULTS:
                start = (state.number - 1) * engine.PAGE
                assert [one.asin for one in view.shown] == list(state.hits[start : start + engine.SHOWN])
            if state.page in (engine.ITEM, engine.SUB):
                assert (view.item.asin, view.item.chosen) == (state.asin, {value for _, value in state.options})
            for button in view.buttons():
                assert GAME.step([state], [f"click[{button}]"])[0].valid, button
    assert seen == set(PAGES)


def test_the_instruction_and_its_limit():
    text = (
        "Goal of the agent: i need red boots, and price lower than 40.00 dollars Earlier attempts: B000000001 got 0.50."
    )
    known = reading.read(f"{text}\nObservation: [Search]\nAction:")
    assert (known.instruction, known.limit, known.advice) == ("i need red boots", 40.0, "B000000001 got 0.50.")
    assert known.wanted == {"red", "boot"}


def chats(line, number=6):
    return [DIALOGUE.chat(history, line) for history, _ in wander(3, number)]


def test_replies_follow_from_the_text_alone():
    model = Shopper()
    for line in ("Action:", "Critic:", "Value:", "Thought:", "Reward:"):
        with_context = chats(line)
        bare = [Chat(chat.messages) for chat in with_context]
        given = model.complete(with_context, Sampling(64, 0.0), "x", stop=("\n",))
        assert given == model.complete(bare, Sampling(64, 0.0), "x", stop=("\n",))
        assert all(reply.text.strip() and reply.tokens and reply.prompt_tokens for reply in given)


def test_the_prior_that_scores_is_the_one_that_draws():
    model = Shopper()
    (chat,) = chats("Action:", 0)
    prior = model.prior(reading.read(chat.messages[-1]["content"]))
    assert sum(map(math.exp, prior.values())) == pytest.approx(1)
    texts = [f" {action}" for action in prior]
    (row,) = model.score([chat], [texts], "policy")
    assert [one.log_prob for one in row] == pytest.approx(list(prior.values()))
    drawn = [reply.text for reply in model.complete([chat] * 400, Sampling(64, 1.0), "policy", seed=1)]
    for text, log_prob in zip(texts, prior.values(), strict=True):
        assert drawn.count(text) / 400 == pytest.approx(math.exp(log_prob), abs=0.08)
    (greedy,) = model.complete([chat], Sampling(64, 0.0), "policy")
    assert greedy.text == f" {max(prior, key=prior.get)}"


def judged(actions, error=0.0):
    """The reflection on the last action, log P(GOOD) - log P(BAD), and the goal's state."""
    (start,) = GAME.reset([("", 0)])
    state, history = start.state, History(start.goal, start.observation)
    for action in actions(start.state.goal):
        (outcome,) = GAME.step([state], [action])
        state, history = outcome.state, history.then(Step(action, outcome.observation))
    model = Shopper(error=error)
    (note,) = model.complete([DIALOGUE.chat(history, "Critic:")], Sampling(64, 0.0), "note")
    (row,) = model.score([DIALOGUE.chat(history, "Critic: This step is")], [[" GOOD", " BAD"]], "critic")
    return verdict(note.text), row[0].log_prob - row[1].log_prob


def test_reflections_judge_by_the_words_of_the_pages():
    words = lambda goal: goal.instruction.partition(", and price")[0]
    search = lambda goal: [f"search[{words(goal)}]"]
    assert judged(search)[0] == "GOOD" and judged(search)[1] > 0
    assert judged(lambda goal: ["click[Buy Now]"])[0] == "BAD"
    target = lambda goal: [f"search[{goal.product.title}]", f"click[{goal.product.asin}]"]
    chosen = lambda goal: [*target(goal), *(f"click[{value}]" for value in goal.options)]
    assert judged(chosen)[0] == "GOOD"
    too_soon, ready = (judged(lambda g, of=of: [*of(g), "click[Buy Now]"])[1] for of in (target, chosen))
    assert too_soon < ready


def test_lac_buys_better_than_the_prior():
    tasks = planning.tasks_of(GAME, [""], 12, 0)

    def mean(name):
        usage, method = Usage(), METHODS[name]
        dialogue = method.dialogue(GAME.rules, True)
        args = Metered(Shopper(), usage), usage, GAME, dialogue, LACConfig(), tasks, 12, 0
        result = planning.run_method(name, method, *args)
        return sum(episode["reward"] for episode in result["episodes"]) / 12

    assert mean("lac") > mean("react") + 0.05
