"""How a script starts: clear errors, the compilation cache, and the folder of the run."""

from __future__ import annotations

import contextlib
import datetime
import errno
import importlib.metadata
import logging
import os
import pathlib
import re
import sys
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import jax
from absl import app as absl_app
from absl import flags

from nlrl_jax.backends import heap
from nlrl_jax.config import flat, replace
from nlrl_jax.run import alike, boards, processes
from nlrl_jax.run.directory import check_done, check_inputs, open_run, read_run
from nlrl_jax.run.flags import Presets, check_numbers, define, help_text
from nlrl_jax.run.flags import parse as parse_flags
from nlrl_jax.types import LanguageModelError

T = TypeVar("T")


def run(main: Callable[[list[str]], Any], takes_names: bool = False) -> None:
    """`absl.app.run` for people: `--help` lists the script's own options, a bad argument is one sentence and not a
    stack trace ($NLRL_TRACEBACK shows it), Ctrl-C one line, and compiled programs are kept on disk.

    Args:
      takes_names: the script reads arguments that are no options.
    """
    if {"--help", "-help", "-h", "--helpshort"} & set(sys.argv[1:]):
        with contextlib.suppress(BrokenPipeError):  # of `--help | head`
            print(help_text(sys.modules[main.__module__]), flush=True)
        os._exit(0)

    def wrapped(argv):
        if len(argv) > 1 and not takes_names:
            sys.exit(f"error: unexpected argument {argv[1]!r}; options are written --name=value or --name value")
        use_compilation_cache()
        # Orbax logs every step of a save, jax every backend that is not there, httpx every request
        for name in ("absl", "jax", "httpx"):
            logging.getLogger(name).setLevel(logging.WARNING)
        join_processes()
        heap.keep()
        try:
            check_numbers()
            main(argv)
        except (ValueError, OSError, LanguageModelError) as error:
            if os.environ.get("NLRL_TRACEBACK"):
                raise
            full = isinstance(error, OSError) and error.errno == errno.ENOSPC
            sys.exit(f"error: {'disk full; free space and run again with --resume' if full else error}")
        except ModuleNotFoundError as error:
            if os.environ.get("NLRL_TRACEBACK") or (error.name or "").startswith(("nlrl_jax", "envs", "launch")):
                raise
            sys.exit(f"error: {missing(error.name) if error.name else error}")
        except KeyboardInterrupt:
            print("\ninterrupted; a run that has begun continues with --resume", file=sys.stderr)
            sys.exit(130)

    absl_app.run(processes.together(wrapped), flags_parser=_parse_argv)


def _parse_argv(argv: list[str]) -> list[str]:
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        sys.exit(f"error: {error}; --help lists the options")


def missing(module: str) -> str:
    """What to install for a module that is not there, by our own extras, as a sentence."""
    name = module.partition(".")[0]
    package = name.replace("_", "-")
    try:
        declared = importlib.metadata.requires("nlrl_jax") or ()
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        declared = ()
    of_package = [one for one in declared if "extra == " in one and re.match(rf"{package}\b(?!-)", one)]
    extras = [one.rpartition("extra == ")[2].strip("\"'") for one in of_package]
    extra = next((f"'nlrl_jax[{extra}]'" for extra in extras if extra != "dev"), package)
    return f"the package {name} is needed and not installed: pip install {extra}"


def join_processes() -> None:
    """`processes.start` with this script's options, if it has them."""
    if "coordinator_address" in flags.FLAGS:
        options = flags.FLAGS
        try:
            processes.start(
                options.coordinator_address,
                options.num_processes,
                options.process_id,
                options.initialization_timeout,
                alike.at_start,
            )
        except ValueError as error:
            sys.exit(f"error: {error}")


def use_compilation_cache() -> None:
    """Keeps compiled programs in ~/.cache/nlrl_jax (or $JAX_COMPILATION_CACHE_DIR) between runs."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        jax.config.update("jax_compilation_cache_dir", os.path.join(cache, "nlrl_jax", "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


def flags_of(
    config: type | Any,
    presets: Presets | None = None,
    flag: str = "preset",
    note: str = "",
    dry_run: str = "",
    several: bool = False,
    metrics: bool = True,
) -> Callable[[], None]:
    """A trainer's `define_flags`: its config's (see `flags.define`), a run's, --dry_run if it has a help text, those
    of `several` processes, and --wandb if it writes `metrics`."""

    def define_flags() -> None:
        define(config, presets, flag, note)
        if dry_run:
            flags.DEFINE_flag(flags.BooleanFlag("dry_run", False, dry_run), module_name="Options")
        for one in (
            flags.Flag(flags.ArgumentParser(), None, "run_dir", "", "folder for everything the run writes"),
            flags.BooleanFlag("resume", False, "continue the run in --run_dir from its last checkpoint"),
            flags.BooleanFlag("overwrite", False, "delete the run in --run_dir first"),
        ):
            flags.DEFINE_flag(one, module_name="Run")
        if metrics:
            shown = "Weights & Biases project that also shows the metrics; needs nlrl_jax[wandb]"
            flags.DEFINE_flag(flags.Flag(flags.ArgumentParser(), "", "wandb", "", shown), module_name="Run")
        if several:
            processes.define_flags()

    return define_flags


def parse(config: type[T] | T, presets: Presets | None = None, flag: str = "preset", script: str = "") -> T:
    """The config that the command line describes; with --resume what it leaves out is the stored run's.

    Args:
      script: whose runs --resume continues.

    Raises:
      ValueError: a value outside its bounds, --resume where there is no run of the script, or --resume with
        --overwrite.
    """
    resumed = "resume" in flags.FLAGS and flags.FLAGS.resume
    if resumed and flags.FLAGS.overwrite:
        raise ValueError("--resume continues the run in --run_dir and --overwrite deletes it; give one of them")
    if resumed and not flags.FLAGS.run_dir:
        raise ValueError("say which run continues: --resume --run_dir runs/NAME")
    stored = read_run(flags.FLAGS.run_dir, script) if resumed else None
    return _dated(parse_flags(config, presets, flag, stored))


def _dated(config: T) -> T:
    """The config with today's date for chat templates (of the first process), where it has one and none is given."""
    if flat(config).get("date") != "":
        return config
    return replace(config, date=processes.from_first(lambda: datetime.date.today().isoformat()))


def take_run_dir(script: str, config: Any, may_change: Collection[str] = ()) -> pathlib.Path:
    """The folder that --run_dir names, checked, locked and holding the config (a dataclass) and the script's name.

    Raises:
      ValueError: no --run_dir, or one that cannot be used, see `open_run`; --resume of a run that has done more
        iterations than are wanted; --overwrite of one in which a folder or file lies that an option names.
    """
    options = flags.FLAGS
    if not options.run_dir:
        raise ValueError("say where the run's files go: --run_dir runs/NAME")
    values = {"script": script, **flat(config)}
    project = options.wandb if "wandb" in options else ""
    run_dir, refused = pathlib.Path(options.run_dir).expanduser().absolute(), None
    if processes.first():
        try:
            if project:
                boards.check_wandb(project)
            if options.resume and "iterations" in values:
                check_done(run_dir, values["iterations"])
            if options.overwrite:
                check_inputs(run_dir, values)
            open_run(run_dir, values, options.resume, overwrite=options.overwrite, may_change=may_change)
            if project:
                boards.use_wandb(run_dir, project)
        except ValueError as error:
            refused = error
    if processes.any_of(refused is not None):  # the others wait here until the first one has it
        raise refused or ValueError("the first process cannot use --run_dir and says why")
    alike.check(values, run_dir)
    return run_dir
