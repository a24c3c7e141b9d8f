"""Where in somebody else's code an error comes from."""

from __future__ import annotations

import pathlib
import sysconfig
import traceback

_HOUSE = [str(pathlib.Path(__file__).parents[1] / name) for name in ("envs", "nlrl_jax", "launch")]
_NOT_THE_USERS = (*_HOUSE, sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), "<")


def code_location(error: BaseException) -> str:
    """Returns " (file, line)" of the last line of the user's own code that an error went through.

    Returns:
      "" where there is none: the error comes from this package, from an installed one or from Python's library.
    """
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    frames = [(file, line) for file, line in frames if not file.startswith(_NOT_THE_USERS)]
    if isinstance(error, SyntaxError):
        frames = [(error.filename, error.lineno)]
    return "".join(f" ({file}, line {line})" for file, line in frames[-1:])
