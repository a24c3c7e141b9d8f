"""How many programs a run of LAC compiles: a menu, whatever the number of games that are still open."""

import os
import pathlib
import re
import subprocess
import sys
from collections import Counter

ROOT = pathlib.Path(__file__).parents[2]
OF_THE_MODEL = ("decode", "read")  # each takes a second or more to compile
# Other programs over arrays of the model: moved between pool and rows, and scores.
OF_SHAPES = ("admit", "load", "store", "bring_together", "next_log_probs", "empty_rows", "empty_pool", "moved")


def test_a_run_compiles_few_programs(tmp_path):
    options = "--model nano_babyai --methods lac --tasks 2 --max_steps 4".split()
    command = [sys.executable, "-m", "nlrl_jax.launch.run_lac", *options, "--run_dir", str(tmp_path / "run")]
    variables = {"JAX_LOG_COMPILES": "1", "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".jax_cache")}
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), **variables}
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    names = Counter(re.findall(r"Finished XLA compilation of jit\((\w+)\)", run.stderr))
    assert 0 < names["decode"] <= 2 and 0 < sum(names[name] for name in OF_THE_MODEL) <= 6, names
    assert sum(names[name] for name in OF_SHAPES) <= 30, names
    # The game, the ledger's seeds, the improved policy: none of them by the number of open games.
    others = {name: number for name, number in names.items() if name not in (*OF_THE_MODEL, *OF_SHAPES)}
    assert sum(others.values()) <= 12, names
