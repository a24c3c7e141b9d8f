"""Language TD and the actor-critic from the command line, as small as can be: what they leave, resuming, annotating."""

import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.config import make
from nlrl_jax.launch import train_language_actor_critic
from nlrl_jax.run import exchanges, local_models, models, results
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.nlrl import actor_critic as actor_critic_run
from nlrl_jax.types import Chat, Piece
from tests.launch.scripts import run

ACTOR_CRITIC = [
    "--opponent=first_move", "--games=2", "--format_examples=4", "--eval_games=2", "--max_tokens=6", "--epochs=1",
    "--batch_size=4", "--large_max_tokens=8",
]  # fmt: skip
TD = [
    "--states=10", "--test_states=6", "--skills=2x1", "--simulations=2", "--rollouts=1", "--judge_games=2",
    "--look_ahead=2", "--variations=2", "--format_examples=6", "--max_tokens=8", "--epochs=1", "--batch_size=4",
    "--threshold=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def actor_critic(tmp_path_factory):
    folder = tmp_path_factory.mktemp("actor_critic") / "run"
    run("train_language_actor_critic", *ACTOR_CRITIC, "--iterations=2", "--prompted=nano", f"--run_dir={folder}")
    return folder


@pytest.fixture(scope="module")
def language_td(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language_td") / "run"
    run("train_language_td", *TD, "--iterations=2", f"--run_dir={folder}")
    return folder


def test_the_actor_critic_leaves_metrics_values_and_a_page(actor_critic):
    folder = actor_critic / "first_move" / "actor-critic"
    metrics = read_metrics(folder)
    assert {"eval/win", "rollout/win", "random_moves", "value_sft/loss", "policy_sft/loss"} <= set(metrics)
    assert len((folder / "values" / "00001.jsonl").read_text().splitlines()) > 0
    page = (actor_critic / "report.html").read_text()
    assert "Improvement, iteration 1" in page and "language value of" in page and "Aggregation" in page
    trained = results.read(folder)
    assert {"win", "tie", "loss", "random_moves"} == set(trained["before"]) == set(trained["after"])
    assert "eval/win" in read_metrics(actor_critic / "first_move" / "LLM-PPO")
    assert results.read(actor_critic / "first_move" / "LLM-PPO")["script"] == "train_language_ppo"
    prompted = results.read(actor_critic / "first_move" / "nano as prompted")
    assert prompted["before"] == {} and sum(prompted["after"][x] for x in ("win", "tie", "loss")) == 1
    assert prompted["after"]["random_moves"] == 1.0  # it knows nothing of this game, and the page says so
    assert "nano as prompted" in page and "random moves" in page


def test_both_opponents_spend_one_budget(tmp_path, monkeypatch):
    """An endpoint's account and cache lie in the run's folder, not in that of an opponent."""
    folders = []
    monkeypatch.setattr(models, "large_model", lambda *args, **_: folders.append(args[2]) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("train_language_actor_critic", f"--run_dir={tmp_path / 'run'}")
    assert folders == [tmp_path / "run"]


def test_language_td_leaves_data_metrics_and_a_page(language_td):
    metrics = read_metrics(language_td)
    assert {"eval/accuracy", "eval/answered", "sft/loss", "value/undecided"} <= set(metrics)
    stored = results.read(language_td)
    assert stored["after"]["positions"] + stored["after"]["level"] == 6 and "accuracy" in stored["before"]
    page = (language_td / "report.html").read_text()
    assert "evaluation before" in page and "Learned from in iteration 2" in page and "one search" in page
    controls = {"target alone", "one search", "more pawns", "more pawns, then the race", "side to move"}
    assert set(stored["beside"]) == controls and stored["beside"]["side to move"]["answered_0.2"] == 1.0
    assert {"accuracy", "accuracy_0.2", "answered_0.2", "positions_0.2", "standard_error"} <= set(stored["after"])


def test_annotating_with_a_trained_model(actor_critic, language_td, capsys):
    run("annotate", f"--run_dir={language_td}", "--position=bb.b./b..b./..bw./w.w../wwwww", "--player=white")
    said = capsys.readouterr().out
    assert "5bb.b." in said and "white to move" in said and "iteration 2" in said
    # "both" opponents or one: the run's own
    run("annotate", f"--run_dir={actor_critic}", "--position=OX3/4O6/7X9", "--player=O")
    said = capsys.readouterr().out
    assert "O to move" in said and sum(said.count(f"\n{n}: ") for n in "34679") == 5


def test_annotating_by_rules(capsys):
    run("annotate", "--game=breakthrough", "--position=bb.b./b..b./..b../w.w../wwwww", "--player=black")
    assert "*Advantage*" in capsys.readouterr().out
    run("annotate", "--game=maze_double_t", "--position=5, 7")
    assert "final_evaluation" in capsys.readouterr().out


def counted(capsys):
    """role -> (calls, tokens written) of a dry run."""
    rows = [line.rsplit(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    numbers = {row[0].strip(): row[1:] for row in rows if len(row) == 4 and row[1].replace(",", "").isdecimal()}
    return {role: tuple(int(n.replace(",", "")) for n in (row[0], row[2])) for role, row in numbers.items()}


@pytest.fixture
def no_models(monkeypatch):
    for module, name in ((models, "large_model"), (local_models, "trainable_model"), (local_models, "tokenizer_of")):
        monkeypatch.setattr(module, name, lambda *_, **__: 1 / 0)


def test_dry_runs_count_and_need_no_model(capsys, no_models):
    small = "--games=32", "--eval_games=8", "--prompted=endpoint", "--token_budget=1000000"
    run("train_language_actor_critic", "--scale=paper", *small, "--dry_run")
    rows = counted(capsys)
    assert {"candidates", "improver", "monte_carlo", "policy", "policy (as prompted)", "value"} == set(rows)
    calls, written = rows["improver"]
    assert calls % (31 * 2) == 0 and written == 1024 * calls and rows["candidates"] == (10 * calls, 5120 * calls)
    run("train_language_td", "--scale=paper", "--dry_run", "--token_budget=100000000")
    rows = counted(capsys)
    assert rows["aggregator (large)"] == (4 * 45_000, 4 * 45_000 * 512)
    assert rows["judge (own)"] == (6 * 3000, 6 * 3000 * 512)
    ends, first = rows["value (own)"][0], rows["value (large)"][0]
    assert ends == 3 * first and 45_000 < first <= 4 * 45_000


def test_the_judged_policy_is_the_mean_of_the_last_that_were_made():
    learned = lambda n: {"w": jnp.full((2,), float(n))}
    state = lambda iteration: actor_critic_run.LearnedModels(
        learned(3), learned(9), jnp.int32(iteration), (learned(2), learned(7))
    )
    for iteration, want in ((0, 3.0), (1, 3.0), (2, 2.5), (3, 4.0), (8, 4.0)):
        np.testing.assert_allclose(state(iteration).judged()["w"], want)


def test_a_model_that_is_called_by_its_path_stays_in_the_runs_folder():
    config = make(
        train_language_actor_critic.ActorCriticRunConfig, prompted="endpoint,/a/b", endpoint_model="/models/Llama"
    )
    assert config.models.labels == {"Llama as prompted": "endpoint", "b as prompted": "/a/b"}


def test_value_data_with_any_line_separator_are_read_back(tmp_path):
    pairs = [(Chat.of("a\u2028b\u0085"), "c\u2029\nd")]
    exchanges.write_pairs(tmp_path / "values.jsonl", pairs)
    ((chat, reply),) = exchanges.read_pairs(tmp_path / "values.jsonl")
    assert chat.messages == pairs[0][0].messages and reply == pairs[0][1]
    pieces = [Piece("a\u2028"), Piece(None, -0.5)]
    exchanges.write_pairs(tmp_path / "pieces.jsonl", [(Chat.of("a", continued="b"), pieces)])
    ((chat, reply),) = exchanges.read_pairs(tmp_path / "pieces.jsonl")
    assert chat.is_open and reply == pieces
