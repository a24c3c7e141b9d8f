"""Runs the scripts of `launch` inside the test's process: each defines its own absl flags, so one at a time."""

import contextlib
import importlib
import sys
from unittest import mock

import jax
import pytest
from absl import flags

from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.run import app, directory
from nlrl_jax.run.flags import join_switches
from nlrl_jax.weights import huggingface
from nlrl_jax.weights.load import load_tokenizer
from tests import programs


@contextlib.contextmanager
def loaded(name):
    """The module `launch.NAME`, imported anew; its flags are gone afterwards."""
    before = set(flags.FLAGS)
    sys.modules.pop(f"nlrl_jax.launch.{name}", None)
    try:
        module = importlib.import_module(f"nlrl_jax.launch.{name}")
        (module.define_flags if hasattr(module, "define_flags") else module.COMMAND.define_flags)()
        yield module
    finally:
        for flag in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, flag)
        sys.modules.pop(f"nlrl_jax.launch.{name}", None)


def run(name, *args):
    """`nlrl-jax NAME ARGS`. A refusal is a SystemExit with the line that is printed."""
    with loaded(name) as module, contextlib.ExitStack() as end:
        end.callback(lambda: [directory.close_run(folder) for folder in list(directory._held)])
        rest = flags.FLAGS(join_switches([name, *map(str, args)]))
        with (
            mock.patch.object(app.absl_app, "run", lambda main, flags_parser: main(rest)),
            mock.patch.object(app, "use_compilation_cache"),  # the tests have their own
            mock.patch.object(jax, "jit", programs.jit),  # a resumed run finds its programs again
            mock.patch.object(app.malloc, "keep"),  # for the whole process, and for good
        ):
            app.run(module.main, takes_names=name == "compare")


def tiny_model(folder, positions=256, num_layers=1, **layers):
    """A folder with a random model that has the tokenizer of the built-in one, and its config."""
    tokenizer = load_tokenizer("nano_babyai")
    network = Transformer(ModelConfig(tokenizer.vocab_size, 16, 24, num_layers, 2, 1, 8, positions, **layers))
    huggingface.save(folder, network.config, init_params(network, jax.random.key(0)), tokenizer)
    return folder, network.config


def refusal(name, *args):
    """The line that `nlrl-jax NAME ARGS` ends with; it must refuse."""
    with pytest.raises(SystemExit) as error:
        run(name, *args)
    line = error.value.code
    assert line.startswith("error: "), line
    return line
