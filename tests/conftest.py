"""Eight devices on the CPU for the sharding tests; programs compiled fast, as most run once, and kept between runs;
processes that stay small."""

import ctypes
import functools
import gc
import os
import pathlib

import jax
import pytest
from jax._src.interpreters import mlir

# Half the time where compilation is most of it: LLVM does not optimise, fusions are emitted the older, shorter way, and
# a program is one module for LLVM, not up to 32 side by side. Processes that a test starts inherit it.
QUICK = (
    "--xla_backend_optimization_level=0 --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters "
    "--xla_cpu_parallel_codegen_split_count=1"
)
os.environ["XLA_FLAGS"] = f"{QUICK} {os.environ.get('XLA_FLAGS', '')}"

os.environ.setdefault("PJRT_NPROC", "64")  # threads: a collective that waits for other devices holds one
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(__file__).parents[1] / ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # two processes compile the same small programs
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# A context of MLIR for each program takes longer to set up than a small program to lower.
mlir.make_ir_context = functools.cache(mlir.make_ir_context)

gc.set_threshold(50_000, 20, 50)  # tracing makes many objects that live; an eighth less time

MOST_MEMORY = 2e9  # bytes that a process may hold between two files


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_do_not_pile_up():
    """A process keeps every program that it has compiled, thousands in all, unless told not to."""
    yield
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) if os.path.exists("/proc/self/statm") else 0
    if pages * os.sysconf("SC_PAGE_SIZE") > MOST_MEMORY:
        from tests import programs

        programs.forget()
        jax.clear_caches()
        mlir.make_ir_context.cache_clear()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(scope="session")
def mesh():
    """Eight devices: two for data, two for FSDP, two for tensor parallelism."""
    from nlrl_jax.lm.sharding import make_mesh

    if jax.device_count() != 8:
        pytest.skip(f"needs 8 devices, there are {jax.device_count()}")
    return make_mesh(data=2, fsdp=2, tensor=2)
