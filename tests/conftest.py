"""Eight devices on the CPU for the sharding tests; programs compiled fast, as most run once, and kept between runs."""

import os
import pathlib

import jax

# A quarter less time where compilation is most of it. Processes that a test starts inherit it.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 " + os.environ.get("XLA_FLAGS", "")

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(__file__).parents[1] / ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
