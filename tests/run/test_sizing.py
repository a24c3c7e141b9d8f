"""The micro-batch that fits a device."""

import types

import pytest

from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig
from nlrl_jax.run import sizing
from nlrl_jax.run.sizing import GIB, fit_micro_batch


class Device:
    """Compiles updates that need 10 GiB and 2 GiB per reply at a time, 1 GiB more above 20 replies, and 5 GiB less
    where rollouts have no copy of the weights."""

    def __init__(self, monkeypatch, memory):
        self.compiled = []
        monkeypatch.setattr(sizing, "memory_of", lambda mesh: memory and memory * GIB)
        monkeypatch.setattr(sizing, "compile_update", self.compile)
        monkeypatch.setattr(sizing, "bytes_of", lambda learning: {"all": self.needed(learning) * GIB})
        self.policy = types.SimpleNamespace(model=types.SimpleNamespace(mesh=None))

    def needed(self, learning):
        size = learning.micro_batch
        return 10 + 2 * size + (size > 20) - 5 * (learning.rollout_weights == "shared")

    def compile(self, policy, game, learning, seeds):
        self.compiled.append(learning.micro_batch)
        return learning


@pytest.mark.parametrize("memory, size", [(100, 40), (91, 40), (90.5, 39), (53, 21), (52.9, 20), (13, 1), (12, 1)])
def test_the_largest_micro_batch_that_fits(monkeypatch, memory, size):
    """Of 640 replies a 16th is wanted; what is found fits, and is at least three quarters of the largest that does."""
    device = Device(monkeypatch, memory)
    found, line = fit_micro_batch(device.policy, None, MSGRPOConfig(group_size=128, sampling_temperature=0.0))
    assert 10 + 2 * found.micro_batch + (found.micro_batch > 20) <= memory
    assert 0.75 * size - 1 <= found.micro_batch <= size
    assert line.startswith(f"micro_batch 0: {found.micro_batch} replies at a time, ") and "GiB" in line
    assert len(device.compiled) <= 4 and found.micro_batch in device.compiled


def test_a_micro_batch_that_is_named_or_no_memory_that_is_known_changes_nothing(monkeypatch):
    device = Device(monkeypatch, None)
    for learning in (MSGRPOConfig(), MSGRPOConfig(micro_batch=3)):
        assert fit_micro_batch(device.policy, None, learning) == (learning, "")
        device = Device(monkeypatch, 1) if not learning.micro_batch else device
    assert not device.compiled


def test_rollouts_share_the_weights_where_a_copy_does_not_fit(monkeypatch):
    device = Device(monkeypatch, 11)
    found, line = fit_micro_batch(device.policy, None, MSGRPOConfig(rollout_weights="auto"))
    assert (found.micro_batch, found.rollout_weights) == (3, "shared") and line.endswith("--rollout_weights shared")


@pytest.mark.parametrize("weights, memory, needed", [("auto", 6, 7), ("apart", 11, 12)])
def test_an_update_that_cannot_fit_is_refused(monkeypatch, weights, memory, needed):
    device = Device(monkeypatch, memory)
    message = f"needs {needed}.0 GiB per device with --micro_batch 1, and there are {memory}.0; use --remat"
    with pytest.raises(ValueError, match=message):
        fit_micro_batch(device.policy, None, MSGRPOConfig(rollout_weights=weights))
