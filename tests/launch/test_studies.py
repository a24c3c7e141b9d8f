"""The evaluation matrix at the smallest scale, and the plan of a large one."""

import pytest

from nlrl_jax import envs
from nlrl_jax.config import make
from nlrl_jax.launch import reproduce_ms_grpo
from nlrl_jax.run import report, results, sizing
from nlrl_jax.run.metrics import read_metrics, read_rows
from nlrl_jax.run.ms_grpo.agents import Agents, load_policy, train_agents
from nlrl_jax.run.ms_grpo.config import DEMO, AgentConfig
from tests.launch import scripts

TINY = {
    "group_size": 4, "group_sample": 2, "num_groups": 1, "max_turns": 2, "max_steps": 4, "max_tokens": 8,
    "eval_episodes": 2, "eval_turns": 2, "eval_every": 1, "lora_rank": 2, "temperature": 2.0,
}  # fmt: skip


def test_table_1_by_hand():
    results = {
        "snake": {
            "before": {"snake": -2.0, "snake_poison": -3.0, "frozen_lake_slippery": 0.0, "frozen_lake": 0.1},
            "after": {
                "snake": [0.0, -1.0], "snake_poison": [-3, -3], "frozen_lake_slippery": [0, 1], "frozen_lake": [1, 0],
            },
        }
    }  # fmt: skip
    rows = reproduce_ms_grpo.table_1(results)
    assert [row["evaluated on"] for row in rows] == list(reproduce_ms_grpo.VARIANTS.values())
    assert rows[0] == {
        "trained on": "Snake-Standard", "evaluated on": "Snake-Standard", "start": "-2.000", "final": "-0.500 ± 6.353",
        "change": "+1.500", "deviation": "0.707", "best run": "0.000",
    }  # fmt: skip
    assert report.markdown(rows).splitlines()[2].startswith("| Snake-Standard | Snake-Standard | -2.000 |")


@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_agents_of_several_seeds(tmp_path, apart):
    """From the first evaluation to the last, on one device or two; each seed is its own run."""
    config = make(AgentConfig, **{**DEMO, **TINY, "iterations": 1, "seed": 3})

    def train(folder, apart):
        game = envs.make("frozen_lake", "compact", maps="train")
        games = {"frozen_lake": envs.make("frozen_lake", "compact")}
        agents = Agents(config, "frozen_lake", game, *load_policy(config, game), games, 1, (3, 4), apart=apart)
        result = train_agents(agents, folder, False)
        # Before and after training one program evaluates: both have an adapter, in the same place.
        assert agents.evaluators["frozen_lake"]._cache_size() == 1
        return result

    result = train(tmp_path / "both", apart)
    assert len(result["after"]["frozen_lake"]) == 2 and len(result["transcripts"]["after"]) == 2
    rows = lambda run: [read_rows(tmp_path / run / f"seed_{n}") for n in (3, 4)]
    assert [len(one) for one in rows("both")] == [1, 1] and rows("both")[0] != rows("both")[1]
    if apart:
        together = train(tmp_path / "one", False)
        assert {**together, "seconds": 0} == {**result, "seconds": 0}
        assert rows("one") == rows("both")


def test_a_sweep_of_the_dqn_ends_with_a_return_for_every_setting(tmp_path, capsys):
    tiny = "num_envs=2", "buffer_size=8", "learning_starts=2", "batch_size=2", "steps_per_iteration=2"
    options = (f"--{option}" for option in (*tiny, "eval_episodes=2", "iterations=2"))
    scripts.run("train_dqn", "--game=frozen_lake", "--sweep", *options, f"--run_dir={tmp_path / 'run'}")
    stored = results.read(tmp_path / "run")
    returns = {name: value for name, value in stored["after"].items() if "=" in name}
    assert stored["iterations"] == 2 and len(returns) == 45
    assert stored["after"]["env_return"] == max(returns.values())
    said = capsys.readouterr().out
    assert all(name in said for name in returns)


@pytest.mark.slow
def test_the_matrix_leaves_table_and_pictures_and_resumes(tmp_path, capsys):
    lengths = "--seeds=2", "--iterations=2", "--dqn_iterations=2"
    scripts.run("reproduce_ms_grpo", "--scale=nano", *lengths, f"--run_dir={tmp_path}")
    assert (tmp_path / "table_1.md").read_text().count("\n") == 12
    for name in ("figure_1.png", "figure_2.png", "report.html", "dqn/results.json", "snake/seed_1/metrics.jsonl"):
        assert (tmp_path / name).stat().st_size > 0, name
    metrics = read_metrics(tmp_path / "frozen_lake" / "seed_0")
    assert "return" in metrics
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("greedy reward: snake ")
    scripts.run("reproduce_ms_grpo", f"--run_dir={tmp_path}", "--resume")  # everything is there already
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_the_plan_counts_tokens_and_operations():
    config = make(AgentConfig, **{**DEMO, **TINY, "micro_batch": 2})
    policy, _ = reproduce_ms_grpo.policy_without_weights(config, "frozen_lake")
    work = sizing.work_of(policy, config.learning)
    assert work.reply_tokens == 4 * 2 * 8
    assert work.prompt_tokens == len(policy.template.prefix) + 4 * 2 * policy.template.max_length
    assert work.learned_tokens == 2 * 2 * (policy.template.max_length + 8)
    passes = work.prompt_tokens + work.reply_tokens + 4 * work.learned_tokens
    assert work.flop == 2 * policy.model.config.num_params * passes
    assert reproduce_ms_grpo.QWEN25_3B.num_params == pytest.approx(3.09e9, rel=0.01)  # as its model card says
    assert 1e8 < sizing.matmul_rate(256) < 1e15
