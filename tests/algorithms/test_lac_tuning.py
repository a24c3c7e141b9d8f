"""Fine-tuning of LAC's model: what is learned is what LAC asks for, however the examples are cut."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from nlrl_jax.algorithms import lac, offline, sft
from nlrl_jax.algorithms.lac import LACConfig
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.algorithms.sft import SFTConfig
from nlrl_jax.config import replace
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.roles.dialogues import Dialogue, History, Step, before_verdict
from nlrl_jax.roles.lines import ACTION, OBSERVATION, REFLECTION, lines_of, pairs, prompt
from nlrl_jax.types import Reply, Score
from nlrl_jax.weights.load import load_tokenizer

TOKENIZER = load_tokenizer("nano_babyai")
STEPS = (
    Step("turn left", "You see a green key 2 steps left", "I have seen the green key. This step is GOOD."),
    Step("go forward", "You see a wall 1 step forward", "The way is blocked. This step is BAD."),
    Step("turn right", "You see nothing", "Nothing. This step is UNKNOWN."),
    Step("turn left", "You see a green key 1 step forward"),
)
HISTORY = History("go to the green key", "You see a wall 2 steps right", STEPS)
ACTIONS = ("turn left", "turn right", "go forward")
DIALOGUE = Dialogue.of("Walk.", compact=False, count=lambda text: len(TOKENIZER.encode(text)))


def tokens(chat, text):
    return [*TOKENIZER.encode(TOKENIZER.render_chat(chat.messages)), *TOKENIZER.encode(text)]


def test_two_pairs_a_step_and_the_action_if_asked_for():
    kinds = lambda *given: [line.kind for line in offline.lac_lines(HISTORY, *given)]
    assert kinds() == [OBSERVATION, REFLECTION] * 3 + [OBSERVATION]  # the last step has no reflection
    assert kinds(True) == [ACTION, OBSERVATION, REFLECTION] * 3 + [ACTION, OBSERVATION]
    assert len(pairs(DIALOGUE, offline.lac_lines(HISTORY))) == 7


class Asked:
    """Answers as the episode went, and keeps the prompts with these answers as tokens."""

    can_score = True

    def __init__(self, t):
        self.t, self.met = t, []

    def complete(self, chats, sampling, role, seed=0, stop=()):
        return [Reply(self.meet(chat), 1, 1, True) for chat in chats]

    def meet(self, chat):
        history, last = chat.context["history"], chat.context["line"].splitlines()[-1]
        number = min(len(history.steps) - (last == "Critic:"), len(STEPS) - 1)
        step = STEPS[number]
        text = {"Observation:": step.observation, "Critic:": step.note, "Action:": step.action}[last]
        self.met.append(tokens(chat, f" {text}\n"))
        return f" {text}"

    def score(self, chats, texts, role):
        if role == "policy":
            for chat in chats:
                self.meet(chat)
        else:
            self.met += [tokens(chat, " GOOD") for chat in chats]
        return [[Score(-1.0, 1)] * len(row) for row in texts]


@pytest.mark.parametrize("compact", [False, True])
def test_training_text_is_inference_text(compact):
    dialogue = METHODS["lac"].dialogue("Walk.", compact)
    met = []
    for t in range(len(STEPS)):
        past = dataclasses.replace(HISTORY, steps=STEPS[:t]).noted("")
        model = Asked(t)
        lac.decide(model, dialogue, [past], ACTIONS, replace(LACConfig(), candidates=3, depth=1), 0)
        met += model.met
    lines = offline.lac_lines(HISTORY, actions=True)
    examples = sft.tokenize(TOKENIZER, pairs(dialogue, lines))
    assert all(example.tokens in met for example in examples)
    judged = [line for line in lines if line.kind == REFLECTION]
    for line in judged:  # and where GOOD and BAD are read
        open_ = line._replace(opening=f"Critic: {before_verdict(line.text)}")
        assert tokens(prompt(dialogue, open_), " GOOD") in met
    # The same text, when a whole episode is one example
    (joined,) = sft.tokenize(TOKENIZER, pairs(dialogue, lines, joined=True))
    whole = joined.tokens
    assert all(example.tokens == whole[: len(example.tokens)] for example in examples)


def test_episodes_teach_the_same_as_pairs():
    network = Transformer(ModelConfig(TOKENIZER.vocab_size, 16, 24, 1, 2, 1, 8, 512))
    params = jax.tree.map(lambda x: x * 3, init_params(network, jax.random.key(0)))
    loss = jax.jit(jax.value_and_grad(lambda p, batch: sft.sft_loss(network, {"params": p}, batch)[0]))
    found = []
    for joined in (False, True):
        examples = sft.tokenize(TOKENIZER, pairs(DIALOGUE, offline.lac_lines(HISTORY), joined))
        shape = SFTConfig(batch_size=len(examples), max_length=512)
        (batch,) = sft.make_batches(examples, shape, np.arange(len(examples)))
        found.append((len(examples), sum(len(one.tokens) for one in examples), *loss(params, batch)))
    (n, read, pair_loss, pair_grads), (m, read_once, loss_once, grads_once) = found
    assert (n, m) == (7, 1) and read > 4 * read_once
    np.testing.assert_allclose(pair_loss, loss_once, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), pair_grads, grads_once)


class Judge:
    """Every token has log-probability -2; GOOD is right where a key is named in the explanation."""

    def score(self, chats, texts, role):
        rows = []
        for chat, row in zip(chats, texts, strict=True):
            key = "key" in chat.context["line"]
            known = {" GOOD": math.log(0.9 if key else 0.8), " BAD": math.log(0.1 if key else 0.2)}
            rows.append([Score(known.get(text, -2.0 * len(text)), 1 if text in known else len(text)) for text in row])
        return rows


def test_evaluation_counts_signs_and_tokens():
    found = offline.evaluate(Judge(), DIALOGUE, offline.lac_lines(HISTORY))
    assert found == {
        "observation_loss": 2.0,
        "reflection_loss": 2.0,
        "accuracy": 0.5,  # UNKNOWN is not judged
        "accuracy_good": 1.0,
        "accuracy_bad": 0.0,
    }
    actions = [line for line in lines_of(HISTORY) if line.kind == ACTION]
    assert offline.evaluate(Judge(), DIALOGUE, actions) == {"action_loss": 2.0}
