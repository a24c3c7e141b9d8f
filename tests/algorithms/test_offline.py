"""Policies from a fixed set of episodes: weights by hand, and the gradient of equation A.5.2."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nlrl_jax.algorithms import offline, sft
from nlrl_jax.algorithms.offline import METHODS, OfflineConfig, Trajectory, pairs
from nlrl_jax.algorithms.sft import SFTConfig
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.score import score
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.roles.dialogues import Dialogue, History, Step
from nlrl_jax.types import Piece, Score
from nlrl_jax.weights.load import load_tokenizer

TOKENIZER = load_tokenizer("nano_board")
DIALOGUE = Dialogue("Act", label="")
WON = Trajectory(
    History("a key", "wall 1", (Step("left", "key 2", "It is seen. This step is GOOD."), Step("go", "key 1"))), True
)
LOST = Trajectory(
    History("a box", "box 1", (Step("right", "wall 3", "Lost. This step is BAD."), Step("go", "wall 2"))), False
)
EPISODES = [WON, LOST]


@pytest.fixture(scope="module")
def model():
    network = Transformer(ModelConfig(TOKENIZER.vocab_size, 16, 24, 1, 2, 1, 8, 256))
    params = jax.tree.map(lambda x: x * 3, init_params(network, jax.random.key(0)))
    return LocalModel(network, {"params": params}, TOKENIZER)


def weights(method, *args, **changes):
    return [
        [piece.learned for piece in reply if piece.text in (" left\n", " right\n", " go\n")]
        for _, reply in pairs(OfflineConfig(method, **changes), DIALOGUE, EPISODES, *args)
    ]


class Judge:
    """log P(GOOD) is minus the length of the goal's transcript, log P(BAD) is -1."""

    can_score = True

    def __init__(self):
        self.asked = []

    def score(self, chats, continuations, role):
        self.asked += [(chat.messages[-1]["content"], tuple(row), role) for chat, row in zip(chats, continuations)]
        lengths = [len(chat.messages[-1]["content"]) for chat in chats]
        return [[Score(-float(length), 1), Score(-1.0, 2)] for length in lengths]


def test_what_actions_weigh_by_hand():
    assert weights("finetuned_policy") == weights("decision_transformer") == [[1.0, 1.0], [1.0, 1.0]]
    assert weights("policy_gradient") == [[1.0, 1.0], [-1.0, -1.0]]
    assert weights("dense_policy_gradient", step_reward=0.25) == [[1.25, 1.0], [-1.25, -1.0]]
    judge = Judge()
    found = weights("actor_critic", judge)
    assert [(row, role) for _, row, role in judge.asked] == [((" GOOD", " BAD"), "critic")] * 4
    first = "Goal of the agent: a key\nObservation: wall 1\nAction: left\n"
    assert [text for text, _, _ in judge.asked[:2]] == [
        f"{first}Critic: This step is",  # before its observation is known
        f"{first}Observation: key 2\nAction: go\nCritic: This step is",
    ]
    texts = [text for text, _, _ in judge.asked]
    assert found == [[1.0 - len(text) for text in row] for row in (texts[:2], texts[2:])]


def test_returns_grow_backwards_and_unknown_steps_earn_nothing():
    notes = ("This step is GOOD.", "This step is UNKNOWN.", "", "This step is BAD.")
    steps = tuple(Step("go", "x", note) for note in notes)
    np.testing.assert_allclose(
        offline.dense_returns(Trajectory(History("g", "o", steps), True), 0.5), [1, 0.5, 0.5, 0.5]
    )


@pytest.mark.parametrize("method", METHODS)
def test_actions_follow_the_prompts_that_would_ask_for_them(method):
    config = OfflineConfig(method)
    examples = pairs(config, DIALOGUE, [*EPISODES, Trajectory(History("g", "o"), True)], Judge())
    assert len(examples) == 2  # an episode without a step teaches nothing
    for (chat, reply), trajectory in zip(examples, EPISODES, strict=True):
        dialogue = offline.acting(config, DIALOGUE, trajectory.success)
        start, middle, end = (dialogue.chat(h, "Action:") for h in prefixes(trajectory.history))
        assert chat.messages == start.messages
        read = start.messages[-1]["content"]
        for piece, after in zip(reply, (None, middle, None), strict=True):
            read += piece.text
            assert after is None or read == after.messages[-1]["content"]
        assert end.messages[-1]["content"].startswith(read)
        # Tokens are those of the whole text, so generation meets the same borders.
        (example,) = sft.tokenize(TOKENIZER, [(chat, reply)])
        whole = TOKENIZER.encode(TOKENIZER.render_chat(chat.messages) + "".join(piece.text for piece in reply))
        assert example.tokens == whole


def prefixes(history):
    return [History(history.goal, history.observation, history.steps[:t]) for t in range(len(history.steps) + 1)]


def test_a_decision_transformer_reads_the_return_it_had_and_acts_for_success():
    config = OfflineConfig("decision_transformer")
    (_, won), (chat, lost) = pairs(config, DIALOGUE, EPISODES)
    head = "Goal of the agent: a box\nReturn: -1\nObservation: box 1\nAction:"
    assert chat.messages[-1]["content"] == head
    assert lost[1] == Piece("Return: -1\nObservation: wall 3\nAction:", 0.0)
    assert won[1] == Piece("Return: 1\nObservation: key 2\nAction:", 0.0)
    acts = offline.acting(config, DIALOGUE)
    assert acts.chat(LOST.history, "Action:").messages[-1]["content"].count("Return: 1\nObservation:") == 3
    assert (acts.instructions, acts.label) == (DIALOGUE.instructions, DIALOGUE.label)


def test_an_episode_that_does_not_fit_is_several_examples_with_each_action_once():
    steps = tuple(Step(f"go {i}", f"wall {i}") for i in range(10))
    narrow = dataclasses.replace(DIALOGUE, room=200)
    examples = pairs(OfflineConfig(), narrow, [Trajectory(History("a key", "wall", steps), True)])
    assert len(examples) == 4
    actions = [piece.text for _, reply in examples for piece in reply if piece.learned]
    assert actions == [f" go {i}\n" for i in range(10)]
    for chat, reply in examples:
        assert sum(len(m["content"]) for m in chat.messages) + sum(len(piece.text) for piece in reply) <= 200
        assert reply[0].learned == 1
    judge = Judge()
    offline.q_values(judge, narrow, [History("a key", "wall", steps)])
    assert len(judge.asked) == 10 and max(len(text) for text, _, _ in judge.asked) < 200


def test_the_gradient_is_that_of_equation_a_5_2(model):
    """- 1/N sum_t W_t grad log pi(a_t | g, h_t), each action scored by itself after its own prompt."""
    config = OfflineConfig("dense_policy_gradient", step_reward=0.25)
    examples = sft.tokenize(TOKENIZER, pairs(config, DIALOGUE, EPISODES))
    (batch,) = sft.make_batches(examples, SFTConfig(batch_size=2, max_length=256), np.arange(2))
    loss = jax.jit(jax.value_and_grad(lambda p: sft.sft_loss(model.model, {"params": p}, batch)[0]))
    found, grads = loss(model.variables["params"])

    steps = [(h, step) for one in EPISODES for h, step in zip(prefixes(one.history), one.history.steps)]
    encode = lambda h: TOKENIZER.encode(TOKENIZER.render_chat(DIALOGUE.chat(h, "Action:").messages))
    prompts, actions = [encode(h) for h, _ in steps], [TOKENIZER.encode(f" {step.action}\n") for _, step in steps]
    padded = np.array([[0] * (96 - len(row)) + row for row in prompts])
    replies = np.array([row + [0] * (8 - len(row)) for row in actions])
    W = np.array([[1.25], [1.0], [-1.25], [-1.0]]) * [[k < len(row) for k in range(8)] for row in actions]

    def by_hand(params):
        log_probs = score(model.model, {"params": params}, padded, np.array([*map(len, prompts)]), replies)
        return -jnp.sum(W * log_probs) / sum(map(len, actions))

    want, expected = jax.jit(jax.value_and_grad(by_hand))(model.variables["params"])
    np.testing.assert_allclose(found, want, rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), grads, expected)
    assert optax.tree.norm(grads) > 0.1


def test_a_return_of_one_everywhere_is_fine_tuning():
    won = [WON, LOST._replace(success=True)]
    rows = [sft.tokenize(TOKENIZER, pairs(OfflineConfig(method), DIALOGUE, won)) for method in METHODS[:2]]
    assert rows[0] == rows[1] and any(rows[0][0].weights)


def test_policy_gradient_raises_what_won_and_lowers_what_lost(model):
    learn = sft.learner(SFTConfig(learning_rate=3e-3, epochs=8, batch_size=2, max_length=256))
    learned, metrics = learn(model, pairs(OfflineConfig("policy_gradient"), DIALOGUE, EPISODES))
    assert metrics["examples"] == 2 and metrics["tokens"] > 0
    chats = [DIALOGUE.chat(prefixes(one.history)[0], "Action:") for one in EPISODES]
    texts = [[" left\n"], [" right\n"]]
    before, after = ([row[0].log_prob for row in one.score(chats, texts, "policy")] for one in (model, learned))
    assert after[0] > before[0] + 1 and after[1] < before[1] - 1


def test_what_a_method_lacks_is_refused():
    with pytest.raises(ValueError, match="method is 'bc'; choose one of finetuned_policy"):
        OfflineConfig("bc")
    with pytest.raises(ValueError, match="actor_critic needs a model"):
        weights("actor_critic")
    with pytest.raises(NotImplementedError):
        weights("actor_critic", ScriptedModel({}))
    bare = Trajectory(History("g", "o", (Step("go", "x"),)), True)
    with pytest.raises(ValueError, match='reflections that end "This step is GOOD.".*none of 1 episodes has one'):
        pairs(OfflineConfig("dense_policy_gradient"), DIALOGUE, [bare])
