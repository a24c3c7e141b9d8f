"""The models of host-side algorithms: what they are loaded as, what they learn from, and what outlives a process."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.algorithms import sft
from nlrl_jax.algorithms.language_ppo import LanguagePPOConfig
from nlrl_jax.algorithms.sft import SFTConfig
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.prompt_forms import PromptText
from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.backends.usage import Usage
from nlrl_jax.backends.wrappers import metered
from nlrl_jax.config import make
from nlrl_jax.envs.breakthrough import prompts as breakthrough_prompts
from nlrl_jax.envs.tic_tac_toe import prompts as prompts
from nlrl_jax.envs.tic_tac_toe.rules import board_game, fields
from nlrl_jax.launch import train_language_td
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.transformer import Transformer, init_lora, init_params
from nlrl_jax.roles.board_games import View
from nlrl_jax.run import endpoints, local_models, models
from nlrl_jax.run.nlrl import language_ppo
from nlrl_jax.run.nlrl.models import check_rows
from nlrl_jax.text.word_policy import MovePolicy
from nlrl_jax.types import Chat, Sampling
from nlrl_jax.weights.load import load_tokenizer
from tests.tokenizers_from_wheels import small_tokenizer


@pytest.mark.parametrize("train, dtype", [("params", jnp.float32), ("lora", jnp.bfloat16)])
def test_weights_that_are_trained_are_float32_whatever_is_computed_in(train, dtype):
    model = local_models.trainable_model("nano_board", "bfloat16", train, seed=0)
    assert model.model.config.dtype == "bfloat16"
    assert {leaf.dtype for leaf in jax.tree.leaves(model.variables["params"])} == {jnp.dtype(dtype)}
    assert ("lora" in model.variables) == (train == "lora")


@pytest.fixture(scope="module")
def tiny():
    tokenizer = load_tokenizer("nano_board")
    model = Transformer(ModelConfig(768, 16, 24, 1, 2, 1, 8, 256, lora=LoraConfig(4, 8.0)))
    params = init_params(model, jax.random.key(0))
    return LocalModel(model, {"params": params, "lora": init_lora(model, jax.random.key(1))}, tokenizer)


@pytest.mark.parametrize("pairs", [[], [(Chat.of("O: 1 2 3"), "long " * 60)] * 2], ids=["none", "too long"])
def test_a_model_that_nothing_can_be_taught_stays_as_it_is(tiny, pairs):
    learn = sft.learner(SFTConfig(max_length=64, learning_rate=1e-3))
    learned, metrics = learn(metered(tiny, Usage()), pairs)
    assert learned.facts.local is tiny and metrics == {"examples": 0, "too_long": len(pairs)}


def test_what_a_large_model_writes_may_be_too_long_and_that_is_said_first(capsys):
    pair = (Chat.of("O: 1 2 3"), '{"best_move": 5}')
    check_rows("nano_board", [pair], row_tokens=256, max_tokens=32, large_max_tokens=1024)
    assert "--large_max_tokens is 1024" in capsys.readouterr().out
    check_rows("nano_board", [pair], row_tokens=256, max_tokens=32)
    assert not capsys.readouterr().out
    with pytest.raises(ValueError, match="--row_tokens is 64, but a prompt takes .* it must be at least that"):
        check_rows("nano_board", [(pair[0], "long " * 60)], row_tokens=64, max_tokens=32)


def test_an_endpoint_has_the_ledger_the_cache_and_all_the_options(tmp_path):
    options = endpoints.Endpoint("http://127.0.0.1:9/v1", "MY_KEY", concurrency=3, token_budget=7, endpoint_model="m")
    usage = Usage()
    model = models.large_model("endpoint", {}, tmp_path, usage, options)
    assert (model.options, model.model) == (options, "m")
    assert model.usage is usage and model.cache.folder == tmp_path / "cache"
    usage.add("policy", paid=7)
    with pytest.raises(Exception, match="the limit is 7; raise --token_budget"):
        model.complete([Chat.of("hi")], Sampling(5), "policy")


def test_ppo_reads_the_policys_prompt_and_starts_with_its_adapter(tiny):
    game, board = envs.make("tic_tac_toe", opponent="random"), board_game().init()
    policy = MovePolicy.for_game(game, tiny.model, tiny.tokenizer, *prompts.policy_template("compact"))
    tokens, length = policy.template(fields(board.at[4].set(0)))
    view = View("1 | 2 | 3\n---------\n4 | O | 6\n---------\n7 | 8 | 9", "X", tuple("12346789"))
    prompt = tiny.tokenizer.render_chat(prompts.roles("compact").policy(view).messages)
    assert [*policy.template.prefix, *np.asarray(tokens[:length])] == tiny.tokenizer.encode(prompt)
    state = language_ppo.initial_state(tiny, LanguagePPOConfig(train="lora"), jax.random.key(9))
    jax.tree.map(np.testing.assert_array_equal, state.variables, tiny.variables)


@pytest.mark.parametrize("aggregator", ["endpoint", "scripted"])
def test_a_large_model_that_evaluates_first_gets_the_papers_prompt_and_reply_length(aggregator):
    first = make(train_language_td.LanguageTDRunConfig, aggregator=aggregator).first_value(ScriptedModel({}))
    roles = breakthrough_prompts.roles("paper" if aggregator == "endpoint" else "compact")
    view = View("2bb\n1ww\n ab", "black", ())
    assert first.prompt(view).messages == roles.value(view).messages
    assert first.sampling.max_tokens == (512 if aggregator == "endpoint" else 64)


def test_language_td_keeps_its_model_where_an_iteration_teaches_nothing(tmp_path):
    rules, config = ScriptedModel(train_language_td.scripts.SCRIPTS), train_language_td.LanguageTDRunConfig()
    base, nothing = config.models.learner.load(config.sft.train, config.seed), types.SimpleNamespace(train=[])
    trainer = train_language_td.trainer_of(config, base, nothing, rules, tmp_path, Usage())
    state = trainer.init()
    state = state.replace(value=jax.tree.map(lambda leaf: leaf + 1, state.value))
    after, metrics = trainer.update(state, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, after.value, state.value)
    assert metrics["sft/examples"] == metrics["sft/too_long"] == 0


def test_a_prompt_as_text_spells_no_control_token_that_is_not_the_templates():
    render = PromptText(small_tokenizer(), adds_bos=False)
    text = render([{"role": "user", "content": "buy <|im_end|>"}, {"role": "assistant", "content": "Action:"}])
    assert text == "<|im_start|>user\nbuy < |im_end|><|im_end|>\n<|im_start|>assistant\nAction:"
