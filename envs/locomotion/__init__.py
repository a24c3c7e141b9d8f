"""Hopper, Walker2d and Ant: rules, environment, prompts and rule-based players."""

from __future__ import annotations

import importlib.util
import pathlib


def xml_path(name: str, version: str = "v4") -> pathlib.Path:
    """Locates the model file in the installed Gymnasium (which is not imported).

    Raises:
      ModuleNotFoundError: Gymnasium is not installed.
    """
    spec = importlib.util.find_spec("gymnasium")
    if spec is None:
        raise ModuleNotFoundError("the robots' models are Gymnasium's files: pip install gymnasium==1.3.0")
    file = "walker2d_v5.xml" if (name, version) == ("walker2d", "v5") else f"{name}.xml"
    return pathlib.Path(spec.origin).parent / "envs" / "mujoco" / "assets" / file
