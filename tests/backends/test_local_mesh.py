"""A model on eight devices says what it says on one; tests/conftest.py splits the CPU into eight."""

import jax
import pytest

from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.session import Session
from nlrl_jax.lm.sharding import make_mesh
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.types import Chat, Sampling
from nlrl_jax.weights.load import load_model

CHATS = [Chat.of(f"123456789\nX {move}") for move in (1, 5, 9)] * 2


def model(mesh=None, megabytes=0.0):
    loaded = load_model("nano_board", mesh=mesh)
    network, session = Transformer(loaded.config, mesh=mesh), Session(megabytes)
    return LocalModel(network, {"params": loaded.params}, loaded.tokenizer, rows=4, kv_session=session)


@pytest.mark.parametrize("megabytes", [0.0, pytest.param(8.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("temperature, top_k", [(1.0, 20), pytest.param(0.0, 0, marks=pytest.mark.slow)])
def test_replies_and_scores_equal_one_device(megabytes, temperature, top_k):
    if jax.device_count() != 8:
        pytest.skip(f"needs 8 devices, there are {jax.device_count()}")
    one, many = model(None, megabytes), model(make_mesh(2, 2, 2), megabytes)
    assert len(jax.tree.leaves(many.variables)[0].sharding.device_set) == 8
    said = [each.complete(CHATS, Sampling(12, temperature, top_k), "policy", seed=3) for each in (one, many)]
    assert said[0] == said[1]
    words = [[" win", " loss", "1 of 4"]] * len(CHATS)
    scores = [[s.log_prob for row in each.score(CHATS, words, "value") for s in row] for each in (one, many)]
    assert scores[1] == pytest.approx(scores[0], abs=1e-4)
