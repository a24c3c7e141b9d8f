"""What a dry run proposes."""

import types

import pytest

from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig
from nlrl_jax.run import dry_run
from nlrl_jax.run.dry_run import GIB, calls_table, fitted, tokens_of, within_budget

ROWS = [
    {"role": "a", "calls": 2, "prompt_tokens": 900_000, "tokens": 100_000},
    {"role": "b", "calls": 1, "prompt_tokens": 500_000, "tokens": 0},
]


def test_a_table_adds_up():
    assert tokens_of(ROWS) == 1_500_000
    table = calls_table(ROWS, 2)
    assert [line.split() for line in table.splitlines()[1:3]] == [
        ["a", "4", "1,800,000", "200,000"],
        ["b", "2", "1,000,000", "0"],
    ]
    assert table.splitlines()[3].startswith("3.0 million tokens at most")


@pytest.mark.parametrize(
    "budget, value, fixed, each, says",
    [
        (0, 20, 0, 100, ""),
        (1000, 20, 0, 100, "--tasks 20 (2,000 tokens at most) is too much; the largest below it is --tasks 9 (900 "),
        (1001, 20, 0, 100, "the largest below it is --tasks 10 (1,000 tokens at most)"),
        (1000, 20, 350, 100, "the largest below it is --tasks 6 (950 tokens at most)"),
        (5000, 20, 0, 100, "--tasks 20 (2,000 tokens at most) is within it; the largest below it is --tasks 49"),
        (100, 20, 0, 100, "--token_budget 100: too little even for --tasks 1 (100 tokens at most)"),
        (100, 20, 200, 100, "too little even for --tasks 1 (300 tokens at most)"),
    ],
)
def test_the_largest_setting_below_a_budget(budget, value, fixed, each, says):
    assert says in within_budget(budget, "tasks", value, fixed, each)


class Device:
    """Compiles updates that need 10 GiB and 2 GiB per reply at a time, 1 GiB more above 20 replies."""

    def __init__(self, monkeypatch, memory):
        self.compiled = []
        monkeypatch.setattr(dry_run, "memory_of", lambda mesh: memory and memory * GIB)
        monkeypatch.setattr(dry_run, "compile_update", self.compile)
        monkeypatch.setattr(dry_run, "bytes_of", lambda size: {"all": (10 + 2 * size + (size > 20)) * GIB})
        self.policy = types.SimpleNamespace(model=types.SimpleNamespace(mesh=None))

    def compile(self, policy, game, learning, seeds):
        self.compiled.append(learning.micro_batch)
        return learning.micro_batch


@pytest.mark.parametrize("memory, size", [(100, 40), (91, 40), (90.5, 39), (53, 21), (52.9, 20), (13, 1), (12, 1)])
def test_the_largest_micro_batch_that_fits(monkeypatch, memory, size):
    """Of 640 replies a 16th is wanted; what is found fits, and is at least three quarters of the largest that does."""
    device = Device(monkeypatch, memory)
    found, line = fitted(device.policy, None, MSGRPOConfig(group_size=128, sampling_temperature=0.0))
    assert 10 + 2 * found.micro_batch + (found.micro_batch > 20) <= memory
    assert 0.75 * size - 1 <= found.micro_batch <= size
    assert line.startswith(f"micro_batch 0: {found.micro_batch} replies at a time, ") and "GiB" in line
    assert len(device.compiled) <= 4 and found.micro_batch in device.compiled


def test_a_micro_batch_that_is_named_or_no_memory_that_is_known_changes_nothing(monkeypatch):
    device = Device(monkeypatch, None)
    for learning in (MSGRPOConfig(), MSGRPOConfig(micro_batch=3)):
        assert fitted(device.policy, None, learning) == (learning, "")
        device = Device(monkeypatch, 1) if not learning.micro_batch else device
    assert not device.compiled


def test_an_update_that_cannot_fit_is_refused(monkeypatch):
    device = Device(monkeypatch, 11)
    with pytest.raises(
        ValueError, match="needs 12.0 GiB per device with --micro_batch 1, and there are 11.0; use --remat"
    ):
        fitted(device.policy, None, MSGRPOConfig())
