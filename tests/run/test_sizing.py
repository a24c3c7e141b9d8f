"""The micro-batch that fits a device."""

import types

import pytest

from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig
from nlrl_jax.run import sizing
from nlrl_jax.run.sizing import GIB, fit_micro_batch


class Device:
    """Compiles updates that need 10 GiB and 2 GiB per reply at a time, 1 GiB more above 20 replies."""

    def __init__(self, monkeypatch, memory):
        self.compiled = []
        monkeypatch.setattr(sizing, "memory_of", lambda mesh: memory and memory * GIB)
        monkeypatch.setattr(sizing, "compile_update", self.compile)
        monkeypatch.setattr(sizing, "bytes_of", lambda size: {"all": (10 + 2 * size + (size > 20)) * GIB})
        self.policy = types.SimpleNamespace(model=types.SimpleNamespace(mesh=None))

    def compile(self, policy, game, learning, seeds):
        self.compiled.append(learning.micro_batch)
        return learning.micro_batch


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


def test_an_update_that_cannot_fit_is_refused(monkeypatch):
    device = Device(monkeypatch, 11)
    with pytest.raises(
        ValueError, match="needs 12.0 GiB per device with --micro_batch 1, and there are 11.0; use --remat"
    ):
        fit_micro_batch(device.policy, None, MSGRPOConfig())
