"""Scripts: `python -m launch.NAME`, or `nlrl-jax NAME` from any folder."""

import pathlib
import sys

import envs

if pathlib.Path(envs.__file__ or ".").resolve().parents[1] != pathlib.Path(__file__).resolve().parents[1]:
    sys.exit(
        f"error: {envs.__file__} hides nlrl_jax's own package envs; use `nlrl-jax NAME`, or start from another folder"
    )
