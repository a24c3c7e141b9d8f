"""Other clients of the server: our own endpoint backend, which LAC asks, and LangChain's."""

import numpy as np
import pytest

from nlrl_jax.backends import prompt_forms
from nlrl_jax.run import endpoints, models
from nlrl_jax.types import Chat, Sampling

CHATS = [Chat.of("goal", continued=f"Step {i}\nAction:") for i in range(3)]
WORDS = [[" left", " right\n"], [" GOOD", " BAD"], [" BAD", " left"]]
GREEDY, HOT = Sampling(max_tokens=20, temperature=0.0), Sampling(max_tokens=20, temperature=1.0)


def of_a_run(url, run_dir, **options):
    """The endpoint's model as `run_lac` makes it: the server is asked what it can do."""
    endpoint = endpoints.Endpoint(url, **{"endpoint_model": "m", **options})
    needs = models.Scores(True, False, "")
    return models.large_model("endpoint", {}, run_dir, models.ledger(run_dir), endpoint, needs)


def test_lacs_scores_are_the_local_models(url, local, tmp_path):
    far = of_a_run(url, tmp_path, endpoint_tokenizer="nano_board")
    assert far.abilities.echo and far.abilities.form == prompt_forms.TEXT and far.can_score
    rows, expected = far.score(CHATS, WORDS, "critic"), local.score(CHATS, WORDS, "critic")
    for row, wanted in zip(rows, expected, strict=True):
        assert [score.tokens for score in row] == [score.tokens for score in wanted]
        np.testing.assert_allclose([s.log_prob for s in row], [s.log_prob for s in wanted], atol=1e-5)


def test_prompts_as_text_are_continued_as_by_the_local_model(url, local, tmp_path):
    far = of_a_run(url, tmp_path, endpoint_tokenizer="nano_board")
    for stop in ((), (local.complete(CHATS, GREEDY, "policy")[0].text[4:6],)):
        replies = (model.complete(CHATS, GREEDY, "policy", stop=stop) for model in (far, local))
        assert len({tuple(reply.text for reply in row) for row in replies}) == 1


def test_lac_without_our_tokenizer_has_messages_continued_and_words_judged(url, local, tmp_path):
    far = of_a_run(url, tmp_path)
    assert (far.abilities.form, far.abilities.top) == (prompt_forms.CONTINUED, 20)
    texts, expected = ([reply.text for reply in model.complete(CHATS, GREEDY, "policy")] for model in (far, local))
    assert texts == expected
    stop = [expected[0][4:6], expected[1][7:8]]
    assert [reply.text for reply in far.complete(CHATS, GREEDY, "policy", stop=stop)] == [
        reply.text for reply in local.complete(CHATS, GREEDY, "policy", stop=stop)
    ]


def test_no_field_of_ours_is_refused_and_drawn_replies_have_log_probabilities(url, tmp_path, caplog):
    far = of_a_run(url, tmp_path)
    replies = far.complete([CHATS[0]] * 5 + CHATS[1:], HOT, "policy", 3)
    assert len({reply.text for reply in replies}) == 7 and not far.known.refused and not caplog.records
    assert all(reply.log_probs and max(reply.log_probs) <= 0 for reply in replies)
    again = of_a_run(url, tmp_path / "again").complete([CHATS[0]] * 5 + CHATS[1:], HOT, "policy", 3)
    assert [reply.text for reply in again] == [reply.text for reply in replies]


def test_langchain_asks_and_streams(url):
    langchain = pytest.importorskip("langchain_openai")
    model = langchain.ChatOpenAI(base_url=url, api_key="none", model="m", temperature=0, max_tokens=20, max_retries=0)
    whole = model.invoke("Where to?")
    assert whole.content and whole.usage_metadata["output_tokens"] == 20
    assert "".join(chunk.content for chunk in model.stream("Where to?")) == whole.content
    assert model.batch(["Where to?"] * 3)[2].content == whole.content
