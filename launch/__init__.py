"""Scripts: `nlrl-jax NAME`, from any folder."""

import sys


def _one_line_if_interrupted(kind, error, trace, otherwise=sys.excepthook):
    """`sys.excepthook`: imports take seconds, and Ctrl-C in them would end in their whole stack."""
    if issubclass(kind, KeyboardInterrupt):
        print("\ninterrupted", file=sys.stderr)
    else:
        otherwise(kind, error, trace)


sys.excepthook = _one_line_if_interrupted

if __name__ == "launch":
    from nlrl_jax import old_names

    old_names.alias(__name__)
