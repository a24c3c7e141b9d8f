"""What trains and what plays, with a tiny random model of each family that has something Llama has not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nlrl_jax.algorithms import ms_grpo
from nlrl_jax.algorithms.sft import SFTBatch, make_sft_step, sft_loss
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.session import Session
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.families import FULL, LINEAR, SLIDING, DeltaNetSizes
from nlrl_jax.lm.transformer import Transformer, init_lora
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.types import Chat, Sampling
from nlrl_jax.weights.load import load_tokenizer
from tests.algorithms.ms_grpo_by_hand import CONFIG, GAME, jit
from tests.lm.noise import noisy_params
from tests.tokenizers_from_wheels import small_tokenizer

GEMMA = dict(activation="gelu_tanh", norm_offset=True, scale_embeddings=True, tie_embeddings=True)
FAMILIES = {
    "mistral": dict(sliding_window=9, layer_types=(SLIDING,) * 2),
    "gemma": GEMMA,
    "gemma3": dict(
        **GEMMA, sandwich_norms=True, qk_norm=True, sliding_window=9, layer_types=(SLIDING, FULL), local_rope_theta=99.0
    ),
    "qwen3_5": dict(
        layer_types=(LINEAR, FULL), delta_net=DeltaNetSizes(2, 4, 3, 5, 4), norm_offset=True, gated_attention=True,
        partial_rotary_factor=0.25, qk_norm=True, norm_eps=1e-2,
    ),
    "qwen3_moe": dict(qk_norm=True, num_experts=5, experts_per_token=2, expert_size=12, renormalise_experts=True),
}  # fmt: skip


# gemma3 has all that gemma has.
@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name == "gemma")) for name in FAMILIES])
def family(request):
    return FAMILIES[request.param]


def config_of(family, tokenizer):
    size = 8 * -(-tokenizer.vocab_size // 8)
    return ModelConfig(size, 16, 24, 2, 4, 2, 8, 256, lora=LoraConfig(2, 4.0), **family)


@pytest.mark.slow
def test_two_updates_of_ms_grpo_in_one_program(family):
    tokenizer = small_tokenizer()
    model = Transformer(config_of(family, tokenizer))
    sampling = Sampling(max_tokens=6, temperature=1.3)
    policy = LanguageAgentPolicy.for_game(GAME, model, tokenizer, sampling, "compact")
    params = noisy_params(model.config, 0.3)["params"]
    state = ms_grpo.init_state(model, params, CONFIG, jax.random.key(0))
    update = jit(ms_grpo.make_update(policy, GAME, CONFIG))
    for i in range(2):
        state, metrics = update(state, jax.random.key(i))
        assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves((state.lora, metrics)))


def test_an_adapter_learns_a_reply(family):
    model = Transformer(config_of(family, small_tokenizer()))
    variables = {**noisy_params(model.config, 0.3), "lora": init_lora(model, jax.random.key(1))}
    tokens = jnp.array([[3, 1, 4, 5, 9, 2], [2, 7, 2, 0, 0, 0]])
    positions = jnp.broadcast_to(jnp.arange(6), tokens.shape)
    mask = jnp.array([[0, 0, 0, 1, 1, 1], [0, 1, 1, 0, 0, 0]])
    batch = SFTBatch(tokens, positions, (positions < jnp.array([[6], [3]])).astype(jnp.int32), mask)
    optimizer = optax.adam(0.03)
    step = jit(make_sft_step(functools.partial(sft_loss, model), optimizer, "lora"))
    opt_state, losses = optimizer.init(variables["lora"]), []
    for _ in range(30):
        variables, opt_state, metrics = step(variables, opt_state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.5 * losses[0]


def test_a_session_scores_as_one_pass_over_the_whole_text(family):
    """Prompts that go on alike, with what earlier calls have read: longer than the window."""
    tokenizer = load_tokenizer("nano")
    model = Transformer(config_of(family, tokenizer))
    params = noisy_params(model.config, 0.5)["params"]
    local = LocalModel(model, {"params": params}, tokenizer, rows=2, kv_session=Session(8))
    chats = [Chat.of("go up and " * n + "stop") for n in (1, 4, 5)]
    words = ["up", "down", "not yet"]
    replies = local.complete(chats, Sampling(max_tokens=5, temperature=0.0), "policy")
    assert replies == local.complete(chats, Sampling(max_tokens=5, temperature=0.0), "policy")

    @jax.jit
    def read(tokens):
        hidden, _ = model.apply({"params": params}, tokens[None], jnp.arange(len(tokens))[None])
        return jax.nn.log_softmax(model.apply({"params": params}, hidden[0], method="unembed"))

    for chat, scores in zip(chats, local.score(chats, [words] * 3, "policy")):
        prompt = tokenizer.encode(tokenizer.render_chat(chat.messages))
        for word, score in zip(words, scores):
            ids = tokenizer.encode(word)
            log_probs = read(jnp.pad(jnp.array(prompt + ids), (0, 128 - len(prompt + ids))))
            places = np.arange(len(prompt) - 1, len(prompt + ids) - 1)
            assert score.log_prob == pytest.approx(float(log_probs[places, ids].sum()), abs=1e-3)
