"""How a script starts: clear errors, the compilation cache, its options, and the folder of the run."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import functools
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

from nlrl_jax.config import flat, of_stored, replace
from nlrl_jax.lm import malloc
from nlrl_jax.run import metric_sinks, processes
from nlrl_jax.run.directory import check_done, check_inputs, open_run, read_run
from nlrl_jax.run.flags import NOT_OURS, Presets, check_numbers, define, help_text, join_switches, read_whole_numbers
from nlrl_jax.run.flags import parse as parse_flags
from nlrl_jax.run.other_names import ours
from nlrl_jax.run.processes import alike
from nlrl_jax.run.stand_ins import HELP
from nlrl_jax.types import LanguageModelError

T = TypeVar("T")


def run(main: Callable[[list[str]], Any], takes_names: bool = False) -> None:
    """`absl.app.run` with shorter messages: `--help` lists the script's own options, a bad argument is one sentence
    instead of a stack trace (which $NLRL_TRACEBACK shows), Ctrl-C one line. Compiled programs are kept on disk.

    Args:
      takes_names: the script takes arguments other than options.
    """
    if HELP & set(sys.argv[1:]):
        with contextlib.suppress(BrokenPipeError):  # of `--help | head`
            print(help_text(sys.modules[main.__module__]), flush=True)
        os._exit(0)

    def wrapped(argv):
        if len(argv) > 1 and not takes_names:
            sys.exit(f"error: unexpected argument {argv[1]!r}; options are written --name=value or --name value")
        # Orbax logs every step of a save, JAX every missing backend, httpx every request.
        for name in ("absl", "jax", "httpx"):
            logging.getLogger(name).setLevel(logging.WARNING)
        let_all_collectives_wait()
        join_processes()
        use_compilation_cache()
        malloc.keep()
        try:
            check_numbers()
            main(argv)
        except (ValueError, OSError, LanguageModelError) as error:
            if os.environ.get("NLRL_TRACEBACK"):
                raise
            full = isinstance(error, OSError) and error.errno == errno.ENOSPC
            sys.exit(f"error: {'disk full; free space and run again with --resume' if full else error}")
        except ModuleNotFoundError as error:
            if os.environ.get("NLRL_TRACEBACK") or (error.name or "").startswith("nlrl_jax"):
                raise
            sys.exit(f"error: {missing(error.name) if error.name else error}")
        except KeyboardInterrupt:
            print("\ninterrupted; --resume continues a run that has begun", file=sys.stderr)
            sys.exit(130)

    absl_app.run(processes.together(wrapped), flags_parser=_parse_argv)


def _parse_argv(argv: list[str]) -> list[str]:
    read_whole_numbers(flags.FLAGS)
    try:
        return flags.FLAGS(join_switches(argv))
    except flags.UnrecognizedFlagError as error:
        options = {flag.name for place, group in flags.FLAGS.flags_by_module_dict().items() for flag in group
               if not place.startswith(NOT_OURS)}  # fmt: skip
        suggestion = ours(error.flagname, options)
        hint = f"{suggestion}; " if suggestion else ""
        sys.exit(f"error: there is no option --{error.flagname}; {hint}--help lists the options")
    except flags.Error as error:
        sys.exit(f"error: {error}; --help lists the options")


def missing(module: str) -> str:
    """A sentence that says how to install a missing module: by the extra that declares it, if there is one."""
    name = module.partition(".")[0]
    package = name.replace("_", "-")
    try:
        declared = importlib.metadata.requires("nlrl_jax") or ()
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        declared = ()
    of_package = [
        requirement
        for requirement in declared
        if "extra == " in requirement and re.match(rf"{package}\b(?!-)", requirement)
    ]
    extras = [requirement.rpartition("extra == ")[2].strip("\"'") for requirement in of_package]
    extra = next((f"'nlrl_jax[{extra}]'" for extra in extras if extra != "dev"), package)
    return f"the package {name} is needed and not installed: pip install {extra}"


def simulates_devices() -> bool:
    """Whether a CPU is to be several devices."""
    return jax.config.jax_num_cpu_devices > 1 or "host_platform_device_count" in os.environ.get("XLA_FLAGS", "")


def let_all_collectives_wait() -> None:
    """More threads for simulated devices; without effect once a backend has started.

    A collective blocks its thread until all devices have come, and independent ones start side by side. jaxlib 0.10.2
    has a thread for each device or core, whichever are more: on two cores, all can wait for devices that find none.
    """
    if simulates_devices():
        os.environ.setdefault("PJRT_NPROC", "64")


def join_processes() -> None:
    """`processes.start` with this script's options, if it has them."""
    names = ("coordinator_address", "num_processes", "process_id", "initialization_timeout")
    if names[0] in flags.FLAGS:
        try:
            processes.start(*(flags.FLAGS[name].value for name in names), alike.at_start)
        except ValueError as error:
            sys.exit(f"error: {error}")


def use_compilation_cache() -> None:
    """Keeps compiled programs in ~/.cache/nlrl_jax (or $JAX_COMPILATION_CACHE_DIR) between runs.

    Not those for several simulated CPU devices: read from the cache, their collectives can wait for each other for ever
    (jax 0.10.2). Nor those for several processes on CPUs: only the first process writes to the cache, the others may
    read a program that it has compiled and run its collectives in another order, which ends both.
    """
    if simulates_devices() or (jax.distributed.is_initialized() and jax.default_backend() == "cpu"):
        jax.config.update("jax_enable_compilation_cache", False)
        return
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        jax.config.update("jax_compilation_cache_dir", os.path.join(cache, "nlrl_jax", "compiled"))
    # However fast they compile: a run of a planner has dozens of small ones.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@dataclasses.dataclass(frozen=True)
class Command:
    """A script's command line: its options, those of every run (--run_dir, --resume, ...), and the run's folder.

    A script's `main` gets its config from `parse`, refuses what cannot work, answers --dry_run, and only then takes the
    folder with `open`.

    Attributes:
      script: the module's name, by which --resume knows the run.
      config: whose fields are the options. presets, flag, note: see `flags.define`.
      dry_run: help text of --dry_run; "" for a script without it.
      several: whether several processes may train together.
      metrics: whether the script writes metrics, and so has --wandb.
      may_change: options that may differ when a run is resumed; see `open_run`.
    """

    script: str
    config: type
    presets: Presets | None = None
    flag: str = "preset"
    note: str = ""
    dry_run: str = ""
    several: bool = False
    metrics: bool = True
    may_change: Collection[str] = ()

    def define_flags(self) -> None:
        """Defines a flag for every option."""
        define(self.config, self.presets, self.flag, self.note)
        if self.dry_run:
            flags.DEFINE_boolean("dry_run", False, self.dry_run)
        flags.DEFINE_string("run_dir", "", "the run's folder, for everything that it writes")
        flags.DEFINE_boolean("resume", False, "continue the run in --run_dir from its last checkpoint")
        flags.DEFINE_boolean("overwrite", False, "delete the run in --run_dir first")
        if self.metrics:
            wandb_help = "Weights & Biases project that also shows the metrics; needs nlrl_jax[wandb]"
            flags.DEFINE_string("wandb", "", wandb_help)
        if self.several:
            processes.define_flags()

    def run(self, main: Callable[[list[str]], Any]) -> None:
        """Runs the script; see `app.run`."""
        self.define_flags()
        run(main)

    def parse(self) -> Any:
        """The config; see `app.parse`."""
        return parse(self.config, self.presets, self.flag, self.script)

    def open(self, config: Any, may_change: Collection[str] = ()) -> tuple[pathlib.Path, bool]:
        """(the folder that --run_dir names, checked and locked, whether its run is resumed).

        config.json in it holds the config and the script's name.

        Args:
          may_change: more options that may differ.

        Raises:
          ValueError: no --run_dir, or one that cannot be used (see `open_run`); --resume of a run that has already done
            more iterations; --overwrite of a folder that contains a file or folder named by another option.
        """
        options = flags.FLAGS
        if not options.run_dir:
            raise ValueError("say where the run's files go: --run_dir runs/NAME")
        values, allowed = {"script": self.script, **flat(config)}, {*self.may_change, *may_change}
        project = options.wandb if self.metrics else ""
        run_dir, refused = pathlib.Path(os.path.expanduser(options.run_dir)).absolute(), None
        if processes.first():
            try:
                if project:
                    metric_sinks.check_wandb(project)
                if options.resume and "iterations" in values:
                    check_done(run_dir, values["iterations"])
                if options.overwrite:
                    check_inputs(run_dir, values)
                settings = {"overwrite": options.overwrite, "may_change": allowed, "defaults": flat(self.config())}
                settings["translate"] = functools.partial(of_stored, self.config)
                open_run(run_dir, values, options.resume, **settings)
                if project:
                    metric_sinks.use_wandb(run_dir, project)
            except ValueError as error:
                refused = error
        if processes.any_of(refused is not None):  # the others wait here until the first one has it
            raise refused or ValueError("the first process cannot use --run_dir and says why")
        alike.check(values, run_dir)
        return run_dir, options.resume


def parse(config: type[T] | T, presets: Presets | None = None, flag: str = "preset", script: str = "") -> T:
    """The config that the command line describes; with --resume, options left out keep the stored run's values.

    Args:
      script: the script whose runs --resume continues.

    Raises:
      ValueError: a value outside its bounds, no run of this script to resume, or --resume with --overwrite.
    """
    resumed = "resume" in flags.FLAGS and flags.FLAGS.resume
    if resumed and flags.FLAGS.overwrite:
        raise ValueError("--resume continues the run in --run_dir and --overwrite deletes it; give one of them")
    if resumed and not flags.FLAGS.run_dir:
        raise ValueError("say which run continues: --resume --run_dir runs/NAME")
    stored = read_run(flags.FLAGS.run_dir, script) if resumed else None
    return _dated(parse_flags(config, presets, flag, stored))


def _dated(config: T) -> T:
    """The config with today's date for chat templates, by the first process's clock, where `date` is empty."""
    if flat(config).get("date") != "":
        return config
    return replace(config, date=processes.from_first(lambda: datetime.date.today().isoformat()))
