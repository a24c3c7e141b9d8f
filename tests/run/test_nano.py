"""Windows of transcripts, from which the built-in models that continue them learn."""

import itertools

import pytest

from nlrl_jax.roles.dialogues import Dialogue, History, Step, verdict
from nlrl_jax.run import local_models, nano
from nlrl_jax.types import Chat, Sampling

EPISODE = """Goal of the agent: take the mug
Observation: You see a shelf 1, and a shelf 2.
Action: go to shelf 2
Observation: On the shelf 2, you see a mug 1.
Critic: I am at the shelf 2. The mug 1 is here. This step is GOOD.
Action: take mug 1 from shelf 2
Observation: You pick up the mug 1 from the shelf 2."""


def language(window, **changes):
    return nano.Language(r" (?:shelf|mug)(?: \d+)?", vocab_size=450, window=window, **changes)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return nano.train_tokenizer([EPISODE] * 50, tmp_path_factory.mktemp("nano"), 450, language(99).phrases())


def drawn(tokenizer, language, n=40):
    pairs = [(Chat.of("Critic"), EPISODE)]
    return list(itertools.islice(nano.windows(tokenizer, language, pairs, seed=0), n))


def test_names_labels_and_verdicts_are_tokens(tokenizer):
    words = [tokenizer.decode([token]) for token in tokenizer.encode(EPISODE)]
    assert "".join(words) == EPISODE
    assert {" shelf 2", " mug 1", " mug", " GOOD", "Observation:", " take", " This step is"} <= set(words)


def test_windows_begin_with_the_goal_and_an_observation_and_fit(tokenizer):
    head = len(tokenizer.encode(tokenizer.render_chat(Chat.of("Critic").messages)))
    whole, cut = drawn(tokenizer, language(200), 1)[0], drawn(tokenizer, language(head + 30))
    assert tokenizer.decode(whole.tokens[head:-1]) == EPISODE and whole.tokens[-1] == tokenizer.eos_ids[0]
    texts = {tokenizer.decode(one.tokens[head:]) for one in cut}
    assert len(texts) > 1 and all(len(one.tokens) <= head + 30 for one in cut)
    for text in texts:
        goal, first, *_ = text.split("\n")
        assert goal == "Goal of the agent: take the mug" and first.startswith("Observation:")


def test_names_and_verdicts_weigh_more(tokenizer):
    one = drawn(tokenizer, language(200), 1)[0]
    tokens = one.tokens[-len(one.weights) :]
    label, heavy = "", []
    for token, weight in zip(tokens, one.weights, strict=True):
        text = tokenizer.decode([token])
        label = text if text.endswith(":") else label
        if weight > 1:
            heavy.append((label, text))
    assert {("Action:", " shelf 2"), ("Critic:", " GOOD"), ("Observation:", " mug 1")} <= set(heavy)
    assert {text for _, text in heavy} <= {" shelf 1", " shelf 2", " mug 1", " mug", " GOOD"}


JUDGED = {
    "nano_babyai": (
        "go to the red ball",
        "You see a red ball 3 steps forward",
        "",
        ("go forward", "You see a red ball 2 steps forward", "GOOD"),
        ("turn left", "You see a red ball 3 steps right", "BAD"),
    )
}


@pytest.mark.parametrize("name", JUDGED)
def test_built_in_models_act_and_judge(name):
    goal, seen, note, *steps = JUDGED[name]
    model, dialogue = local_models.local_model(name, chat=False), Dialogue.of("", compact=True)
    start = History(goal, seen, note=note)
    (reply,) = model.complete([dialogue.chat(start, "Action:")], Sampling(20, 0.0), "policy", stop=("\n",))
    assert reply.ended and reply.text.split()[0] in ("go", "turn", "inventory", "look", "open", "take")
    after = [dialogue.chat(start.then(Step(*step[:2])), "Critic:") for step in steps]
    notes = model.complete(after, Sampling(40, 0.0), "note", stop=("\n",))
    assert [verdict(note.text) for note in notes] == [step[2] for step in steps]
