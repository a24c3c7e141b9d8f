"""What every script does before its `main`."""

import os

import jax
import pytest

from nlrl_jax.run import app


@pytest.mark.parametrize(
    "devices, flags, joined, kept",
    [
        (-1, "", False, True),
        (1, "", False, True),
        (8, "", False, False),
        (-1, "--xla_force_host_platform_device_count=8", False, False),
        (-1, "", True, False),  # one process could run what another has compiled
    ],
)
def test_programs_for_simulated_devices_or_several_processes_on_cpus_are_not_kept(
    monkeypatch, devices, flags, joined, kept
):
    changed = {}
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: joined)
    monkeypatch.setattr(jax.config, "update", changed.__setitem__)
    monkeypatch.setattr(type(jax.config), "jax_num_cpu_devices", devices, raising=False)
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("PJRT_NPROC", "")  # so that it is put back
    monkeypatch.delenv("PJRT_NPROC")
    app.let_all_collectives_wait()
    app.use_compilation_cache()
    assert ("jax_compilation_cache_dir" in changed) == kept
    assert (changed.get("jax_persistent_cache_min_compile_time_secs") == 0) == kept  # small programs too
    assert ("PJRT_NPROC" in os.environ) == (not kept and not joined)
    assert changed.get("jax_enable_compilation_cache", True) == kept
