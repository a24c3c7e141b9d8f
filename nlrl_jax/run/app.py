"""How a script starts: clear errors, the compilation cache, and the folder of the run."""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import os
import pathlib
import sys
from collections.abc import Callable, Collection
from typing import Any

import jax
from absl import app as absl_app
from absl import flags

from nlrl_jax.run.directory import open_run
from nlrl_jax.types import LanguageModelError


def run(main: Callable[[list[str]], Any], takes_names: bool = False) -> None:
    """`app.run` for people: a bad argument is one sentence, not a stack trace; compiled programs are kept on disk.

    Args:
      takes_names: the script reads arguments that are no options.
    """

    def wrapped(argv):
        if len(argv) > 1 and not takes_names:
            sys.exit(f"error: unexpected argument {argv[1]!r}; options are written --name=value or --name value")
        use_compilation_cache()
        keep_freed_memory()
        # Orbax tells every step of a save, jax every backend that is not there, httpx every request
        for name in ("absl", "jax", "httpx"):
            logging.getLogger(name).setLevel(logging.WARNING)
        try:
            main(argv)
        except (ValueError, OSError, LanguageModelError) as error:
            if os.environ.get("NLRL_TRACEBACK"):
                raise
            sys.exit(f"error: {error}")

    absl_app.run(wrapped)


def use_compilation_cache() -> None:
    """Keeps compiled programs in ~/.cache/nlrl_jax (or $JAX_COMPILATION_CACHE_DIR) between runs."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        jax.config.update("jax_compilation_cache_dir", os.path.join(cache, "nlrl_jax", "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


def keep_freed_memory() -> None:
    """Lets glibc reuse freed memory instead of handing it back to the system between two calls of a program.

    A training step on a CPU otherwise faults in the same gigabyte anew every time. Elsewhere this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        arena_max, mmap_max, trim_threshold = -8, -4, -1  # names in malloc.h
        mallopt(arena_max, 1)
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, 2**31 - 1)


def define_run_flags() -> None:
    """The flags of every training script."""
    flags.DEFINE_string("run_dir", "", "folder for everything the run writes")
    flags.DEFINE_boolean("resume", False, "go on with the run in --run_dir from its last checkpoint")
    flags.DEFINE_boolean("overwrite", False, "delete the run in --run_dir first")


def take_run_dir(config: Any, may_change: Collection[str] = ()) -> pathlib.Path:
    """The folder that --run_dir names, checked, locked and holding the config (a dataclass).

    Raises:
      ValueError: no --run_dir, or one that cannot be used; see `open_run`.
    """
    given = flags.FLAGS
    if not given.run_dir:
        raise ValueError("say where the run's files go: --run_dir runs/NAME")
    asked = dataclasses.asdict(config)
    return open_run(given.run_dir, asked, given.resume, overwrite=given.overwrite, may_change=may_change)
