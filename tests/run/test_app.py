"""What every script does before its `main`."""

import os

import jax
import pytest

from nlrl_jax.run import app


@pytest.mark.parametrize(
    "devices, flags, kept",
    [(-1, "", True), (1, "", True), (8, "", False), (-1, "--xla_force_host_platform_device_count=8", False)],
)
def test_programs_for_several_simulated_devices_are_not_kept(monkeypatch, devices, flags, kept):
    changed = {}
    monkeypatch.setattr(jax.config, "update", changed.__setitem__)
    monkeypatch.setattr(type(jax.config), "jax_num_cpu_devices", devices, raising=False)
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("PJRT_NPROC", "")  # so that it is put back
    monkeypatch.delenv("PJRT_NPROC")
    app.let_all_collectives_wait()
    app.use_compilation_cache()
    assert ("jax_compilation_cache_dir" in changed) == kept
    assert ("PJRT_NPROC" in os.environ) == (not kept)
    assert changed.get("jax_enable_compilation_cache", True) == kept
