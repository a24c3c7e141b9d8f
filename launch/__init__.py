"""Scripts: `python -m launch.NAME`, or `nlrl-jax NAME` from any folder."""

import pathlib
import sys


def _one_line_if_interrupted(kind, error, trace, otherwise=sys.excepthook):
    """`sys.excepthook`: imports take seconds, and Ctrl-C in them would end in their whole stack."""
    if issubclass(kind, KeyboardInterrupt):
        print("\ninterrupted", file=sys.stderr)
    else:
        otherwise(kind, error, trace)


sys.excepthook = _one_line_if_interrupted

import envs  # noqa: E402

if pathlib.Path(envs.__file__ or ".").resolve().parents[1] != pathlib.Path(__file__).resolve().parents[1]:
    sys.exit(
        f"error: {envs.__file__} hides nlrl_jax's own package envs; use `nlrl-jax NAME`, or start from another folder"
    )
