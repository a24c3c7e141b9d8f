"""The language agent policy: the prompt on the device is the prompt on the host; replies become actions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.generate import Completion, generate, left_pad
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.rollouts import text_games
from nlrl_jax.text import policy as policy_module
from nlrl_jax.text.compile import sample_fields
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.text.prompts import chat_prompt, in_chat
from nlrl_jax.text.template import Choice, Literal, Number, Repeat, Template
from nlrl_jax.types import Sampling
from tests.tokenizers_from_wheels import small_tokenizer

MODEL = Transformer(ModelConfig(700, 16, 24, 1, 2, 1, 8, 4096))  # more ids than the tokenizer has tokens
SAMPLING = Sampling(max_tokens=9)


@pytest.mark.parametrize("prompt", ["paper", "compact"])
@pytest.mark.parametrize("name", ["frozen_lake", "snake"])
def test_device_prompt_equals_host_prompt(name, prompt):
    game, tokenizer = envs.make(name, prompt=prompt), small_tokenizer()
    policy = LanguageAgentPolicy.for_game(game, MODEL, tokenizer, SAMPLING, prompt)
    states = sample_fields(game.observation, 60, 0)
    fields = {field: np.stack([state[field] for state in states]) for field in states[0]}
    tokens, lengths = jax.device_get(jax.jit(jax.vmap(policy.template))(fields))
    padded = np.asarray(left_pad(jnp.asarray(tokens), jnp.asarray(lengths)))
    template = chat_prompt(game, tokenizer.render_chat, prompt, SAMPLING.max_tokens)
    texts = set()
    for i, state in enumerate(states):
        want = template.render(state)
        assert policy.prompt_text(padded[i], lengths[i]) == want
        assert [*policy.template.prefix, *tokens[i, : lengths[i]]] == tokenizer.encode(want)
        texts.add(want)
    assert len(texts) > 40
    assert len(policy.template.prefix) > 0  # the rules are computed once for all rows


ITEMS = Repeat("n", 2, (Literal("("), Number("x", 0, 9), Literal(")\n")), separator="", empty="none\n")
OBSERVATIONS = {
    "a newline at the end": "at " + Template((Number("x", 0, 3, 0),)) + "\n",
    "literals of blanks": "at " + Template((Number("x", 0, 3, 0), Literal(" \n"), Literal("\n"))),
    "options that end in blanks": Template((Literal("go "), Choice("n", ("up \n", "down\t")))),
    "a list of lines": Template((Literal("Holes:\n"), ITEMS)),
    "blanks at both ends": "\n  at " + Template((Number("x", 0, 3, 0),)) + "\n",
}
TRIMMED = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n\n{% endfor %}"


def own_game(observation):
    return dataclasses.replace(envs.make("frozen_lake"), name="mine", rules="", observation=observation)


@pytest.mark.parametrize("source", [TRIMMED, TRIMMED.replace(" | trim", "")])
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_a_chat_template_that_trims(name, source):
    game, tokenizer = own_game(OBSERVATIONS[name]), dataclasses.replace(small_tokenizer(), chat_template=source)
    for n in range(2):
        fields = {"n": n, "x": [2, 1]}
        text = game.observation.render(fields)
        want = tokenizer.render_chat([{"role": "user", "content": f"\n{text}"}])
        assert chat_prompt(game, tokenizer.render_chat, "compact", 9).render(fields) == want
        want = tokenizer.render_chat([{"role": "user", "content": text}])
        alone = in_chat(game.observation, lambda text: tokenizer.render_chat([{"role": "user", "content": text}]), "")
        assert alone.render(fields) == want


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("| replace('(1', '(one')", r"changes what mine shows: of 'Holes:\\n\(\d\).*' it makes 'Holes:\\n.*one"),
        ("| upper", "does not repeat the user's message exactly once"),
        ("~ m.content", "does not repeat the user's message exactly once"),
        ("if m.content | length < 12 else m.content[:12]", "changes what mine shows"),
    ],
)
def test_a_chat_template_that_changes_the_state_is_refused(change, message):
    game = own_game(OBSERVATIONS["a list of lines"])
    source = "{% for m in messages %}{{ m.content " + change + " }}{% endfor %}"
    tokenizer = dataclasses.replace(small_tokenizer(), chat_template=source)
    with pytest.raises(ValueError, match=message):
        chat_prompt(game, tokenizer.render_chat, "compact", 9)


def test_paper_prompt_contains_all_instructions():
    game, tokenizer = envs.make("frozen_lake"), small_tokenizer()
    template = chat_prompt(game, tokenizer.render_chat, "paper", 123)
    _, state = game.env.reset_env(jax.random.key(0), game.params)
    text = template.render(jax.tree.map(np.asarray, game.fields(state)))
    for part in (game.rules, "[Game State]", "<observe>", "<think>", "<plan>", "<action>", "Up/Down/Left/Right", "123"):
        assert part in text
    assert text.endswith("<|im_start|>assistant\n")


@pytest.fixture(scope="module")
def policy():
    return LanguageAgentPolicy.for_game(
        envs.make("frozen_lake", prompt="compact"), MODEL, small_tokenizer(), SAMPLING, "compact"
    )


def test_act_reads_writes_and_parses(policy):
    """What `act` returns hangs together: texts, lengths, log-probabilities, actions."""
    game = envs.make("frozen_lake", prompt="compact")
    variables = {"params": init_params(MODEL, jax.random.key(0))}
    fields = jax.vmap(game.fields)(text_games.reset(game, jax.random.key(0), 3))
    active = jnp.array([True, False, True])

    def act(variables, fields, active):
        return policy.act(variables, policy.prefix(variables), jax.random.key(1), fields, active)

    turn = jax.device_get(jax.jit(act)(variables, fields, active))
    assert turn.replies.shape == turn.log_probs.shape == (3, 9)
    assert turn.reply_lengths[1] == 0 and not turn.replies[1].any()
    assert (turn.reply_lengths[[0, 2]] > 0).all() and (turn.log_probs[[0, 2], 0] < 0).all()
    assert turn.parsed.actions.shape == (3, 3)
    template = chat_prompt(game, policy.tokenizer.render_chat, "compact", 9)
    for i in range(3):
        want = template.render({k: np.asarray(v[i]) for k, v in fields.items()})
        assert policy.prompt_text(turn.prompts[i], turn.prompt_lengths[i]) == want


def test_rows_and_slots_that_fill_a_gpu_s_tiles_change_no_reply(policy, monkeypatch):
    game = envs.make("frozen_lake", prompt="compact")
    variables = {"params": init_params(MODEL, jax.random.key(0))}
    fields = jax.vmap(game.fields)(text_games.reset(game, jax.random.key(0), 3))
    shapes = []

    def seen(model, variables, prompts, *args):
        shapes.append(prompts.shape)
        return generate(model, variables, prompts, *args)

    def act(variables, fields):
        key, active = jax.random.key(1), jnp.array([True, False, True])
        return policy.act(variables, policy.prefix(variables), key, fields, active)

    monkeypatch.setattr(policy_module, "generate", seen)
    want = jax.jit(act)(variables, fields)
    monkeypatch.setattr(policy_module, "platform_of", lambda mesh: "gpu")
    found = jax.jit(lambda *args: act(*args))(variables, fields)
    (_, S), (rows, slots) = shapes
    assert rows == 8 and slots >= S and (slots + SAMPLING.max_tokens) % 8 == 0
    np.testing.assert_array_equal(found.replies, want.replies)
    np.testing.assert_allclose(found.log_probs, want.log_probs, atol=1e-5)
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, want)


def test_ids_beyond_the_tokenizer_spell_nothing(policy, monkeypatch):
    beyond = 650
    assert policy.tokenizer.vocab_size <= beyond < MODEL.config.vocab_size
    written = [[*policy.tokenizer.encode(f"<action>{word}</action>"), *policy.eos_ids] for word in ("Up", "Left||Down")]
    written[0].insert(1, beyond)
    width = max(map(len, written))
    tokens = jnp.array([row + [699] * (width - len(row)) for row in written])  # and after the end, too
    lengths = jnp.array([len(row) for row in written])

    def fake(*args):
        return Completion(tokens, lengths, jnp.zeros(tokens.shape), jnp.ones(2, bool))

    monkeypatch.setattr(policy_module, "generate", fake)
    game = envs.make("frozen_lake", prompt="compact")
    fields = jax.vmap(game.fields)(text_games.reset(game, jax.random.key(0), 2))
    turn = jax.jit(lambda: policy.act({}, None, jax.random.key(0), fields, jnp.ones(2, bool)))()
    np.testing.assert_array_equal(turn.parsed.actions, [[0, -1, -1], [2, 1, -1]])
    np.testing.assert_array_equal(turn.parsed.format_penalty, [0, 0])
    np.testing.assert_array_equal(turn.replies, tokens)  # what is learned from is what was sampled
    assert policy.reply_text(np.asarray(tokens[0]), int(lengths[0])) == "<action>Up</action>"


def test_another_sampling_shares_everything_else(policy):
    greedy = policy.for_evaluation()
    assert greedy.sampling == Sampling(SAMPLING.max_tokens, 0.0) and policy.sampling == SAMPLING
    assert greedy.template is policy.template and greedy.parse is policy.parse


def for_game(config=None, sampling=SAMPLING, prompt="compact", **tokenizer):
    """A policy with other values for the model, the sampling, the prompt or the tokenizer."""
    game = envs.make("frozen_lake", prompt="compact")
    model = Transformer(dataclasses.replace(MODEL.config, **config or {}))
    return LanguageAgentPolicy.for_game(
        game, model, dataclasses.replace(small_tokenizer(), **tokenizer), sampling, prompt
    )


def test_a_vocabulary_larger_than_the_model_s_is_refused():
    size = small_tokenizer().vocab_size
    with pytest.raises(ValueError, match=f"tokenizer has {size} tokens but the model's vocabulary is {size - 1}"):
        for_game({"vocab_size": size - 1})
    for_game({"vocab_size": size})


def test_prompt_and_reply_must_fit_the_context(policy):
    longest = len(policy.template.prefix) + policy.template.max_length
    with pytest.raises(ValueError, match=rf"reply \(9\) take {longest + 9} positions; the model has {longest + 8}"):
        for_game({"max_positions": longest + 8})
    for_game({"max_positions": longest + 8}, Sampling(max_tokens=8))


TWICE = "{% for m in messages %}{{ m.content }} {{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"eos_ids": ()}, "no end-of-sequence token"),
        ({"prompt": "short"}, "prompt 'short' is not known; choose one of paper, compact"),
        ({"chat_template": "hello"}, "does not repeat the user's message exactly once"),
        ({"chat_template": TWICE}, "does not repeat the user's message exactly once"),
    ],
)
def test_tokenizers_and_prompts_that_cannot_work_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        for_game(**changed)
