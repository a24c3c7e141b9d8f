"""Eight devices on the CPU for the sharding tests, and compiled programs kept between runs."""

import pathlib

import jax

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(__file__).parents[1] / ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
