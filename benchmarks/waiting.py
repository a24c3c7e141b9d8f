"""What a user waits for: CPU seconds of whole commands on one core, and how many programs are compiled meanwhile.

    python -m benchmarks.waiting                                       # all rows without a model's file
    python -m benchmarks.waiting --rows help demo --repeats 3
    python -m benchmarks.waiting --beside ../before                    # another checkout, with the same Python
    python -m benchmarks.waiting --rows iterations decode --model coder-0.5b.gguf

    commands      nlrl-jax --help
    help          a script's --help
    dry_run       finetune_lac --model nano_babyai --dry_run
    demo          the command of `make demo`, to the end of iteration 1
    transcripts   BabyAI-Text with nano_babyai in lines, 4 groups of 8 episodes, to the end of iteration 3
    lac           run_lac --model nano_babyai --methods lac --tasks 10
    snake         random play of 256 games
    frozen_lake   likewise
    iterations    --model on WebShop, 4 episodes of 3 turns, to the end of iteration 2
    decode        --model writes, 1 row and 8 rows

Every run is a process of its own on one core. "cold" has an empty compilation cache, "warm" what the cold one left.
With --beside the two checkouts take turns, and the ratio is the median over the pairs. "programs" are those that XLA
compiled or read from the cache, small ones included. What a row measures within its process is without compilation.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.timing import ROOT, host, in_turns, parser_of, print_head, print_row

COMPILED = re.compile(r"Finished XLA compilation of ")  # a line of $JAX_LOG_COMPILES for each program
TICKS = os.sysconf("SC_CLK_TCK")

PLAY = """
import json, time
import jax
try:
    from nlrl_jax import envs
except ImportError:  # in a checkout of before they were one package
    import envs
from benchmarks.games import of_env
game = envs.make("{game}")
play = of_env(game.env, game.params, False)(256)
play()
start, steps = time.process_time(), 0
while time.process_time() - start < 3:
    steps += play()
print(json.dumps({{"CPU s per million steps": 1e6 * (time.process_time() - start) / steps}}))
"""

DECODE = """
import json, time
import jax, jax.numpy as jnp
from nlrl_jax.lm import acting, malloc
from nlrl_jax.lm.generate import generate
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.types import Sampling
from nlrl_jax.weights.load import load_weights
malloc.keep()
config, params = load_weights({model!r})
model, measures = Transformer(config), {{}}
variables = acting.views(model, {{"params": params}})
for rows in (1, 8):
    @jax.jit
    def write(variables, prompts):
        sampling, never = Sampling(max_tokens=32, temperature=0.0), (-1,)
        lengths = jnp.full((rows,), 8)
        return generate(model, variables, prompts, lengths, jax.random.key(0), sampling, never).tokens
    prompts = jnp.arange(8 * rows).reshape(rows, 8) + 100
    write(variables, prompts).block_until_ready()
    start = time.process_time()
    write(variables, prompts).block_until_ready()
    measures[f"CPU s, 32 tokens of {{rows}} rows"] = time.process_time() - start
print(json.dumps(measures))
"""

TRANSCRIPTS = """
    --preset babyai --missions 'go to' --num_groups 4 --max_turns 8 --eval_episodes 8 --eval_every 0 --iterations 4
"""
WEBSHOP = """
    --game webshop --num_groups 1 --group_size 4 --sampling_temperature 0 --max_turns 3 --max_tokens 40
    --top_k 3 --temperature 1 --beta 0 --learning_rate 2e-5 --eval_episodes 1 --eval_turns 1 --iterations 3
"""


class Row(NamedTuple):
    """A command: a script with its options, or `code`. iterations: where it is ended, 0 for its own end.

    run_dir: whether the script writes a run's folder.
    """

    script: str = ""
    options: str = ""
    code: str = ""
    iterations: int = 0
    run_dir: bool = True


ROWS = {
    "commands": Row("__main__", "--help", run_dir=False),
    "help": Row("train_ms_grpo", "--help", run_dir=False),
    "dry_run": Row("finetune_lac", "--model nano_babyai --dry_run", run_dir=False),
    "demo": Row("train_ms_grpo", "--model nano --game frozen_lake --preset demo", iterations=1),
    "transcripts": Row("train_ms_grpo", TRANSCRIPTS, iterations=3),
    "lac": Row("run_lac", "--model nano_babyai --methods lac --tasks 10"),
    "snake": Row(code=PLAY.replace("{game}", "snake")),
    "frozen_lake": Row(code=PLAY.replace("{game}", "frozen_lake")),
    "iterations": Row("train_ms_grpo", WEBSHOP, iterations=2),
    "decode": Row(code=DECODE),
}
OF_MODEL = ("iterations", "decode")


def command(row: Row, checkout: pathlib.Path, run_dir: pathlib.Path, model: str) -> list[str]:
    """What starts a row's process in a checkout."""
    if row.code:
        return [sys.executable, "-c", row.code.format(model=model)]
    # Before they belonged to the package, scripts lay in a folder of their own.
    package = "nlrl_jax.launch" if "nlrl_jax.launch" in (checkout / "pyproject.toml").read_text() else "launch"
    words = [sys.executable, "-m", f"{package}.{row.script}", *shlex.split(row.options)]
    words += ["--model", model] if row in (ROWS[name] for name in OF_MODEL) else []
    return words + (["--run_dir", str(run_dir), "--overwrite"] if row.run_dir else [])


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, user and system."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measures_of(output: str) -> dict[str, float]:
    """What a process has measured itself: a JSON object in the last line of its output, if it is one."""
    last = (output.strip().splitlines() or [""])[-1]
    return json.loads(last) if last.startswith("{") else {}


def run_once(row: Row, checkout: pathlib.Path, cache: pathlib.Path, options: argparse.Namespace) -> dict[str, float]:
    """One process of a row: {measure: number}.

    Raises:
      RuntimeError: it failed.
    """
    # A user's second process does not translate Python's source again.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    variables = {"PYTHONPATH": str(checkout), "JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_LOG_COMPILES": "1"}
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/output", "w+") as output:
        run_dir = pathlib.Path(folder) / "run"
        with open(f"{folder}/errors", "w+") as errors:
            process = subprocess.Popen(
                command(row, checkout, run_dir, options.model), cwd=checkout, stdout=output, stderr=errors,
                env={"JAX_PLATFORMS": "cpu", **inherited, **variables},
                preexec_fn=lambda: os.sched_setaffinity(0, {options.core}),
            )  # fmt: skip
            iterations = until(process, run_dir / "metrics.jsonl", row.iterations) if row.iterations else []
            # `wait4` in place of the object's own wait: it says what the process has used.
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            errors.seek(0)
            log = errors.read()
        output.seek(0)
        is_stopped = row.iterations and len(iterations) == row.iterations
        if process.returncode and not is_stopped:
            raise RuntimeError(f"{shlex.join(process.args)} failed in {checkout}:\n{log[-2000:]}")
        measures = {"CPU s": usage.ru_utime + usage.ru_stime, "programs": float(len(COMPILED.findall(log)))}
        if len(iterations) > 1:
            spans = zip([0.0, *iterations], iterations)
            measures |= {f"CPU s to iteration {i + 1}": end - start for i, (start, end) in enumerate(spans)}
        return {**measures, "peak MB": usage.ru_maxrss / 1000, **measures_of(output.read())}


def until(process: subprocess.Popen, metrics: pathlib.Path, iterations: int) -> list[float]:
    """Ends a run as soon as it has written so many iterations' metrics; its CPU seconds at the end of each."""
    seconds: list[float] = []
    while len(seconds) < iterations:
        # Not `poll`, which would take the status that `wait4` returns: a process that has ended is a zombie (Z).
        if pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return seconds
        written = metrics.read_text().count("\n") if metrics.exists() else 0
        seconds += [cpu_seconds(process.pid)] * (written - len(seconds))
        time.sleep(0.05)
    process.kill()
    return seconds


def cold_and_warm(row: Row, checkout: pathlib.Path, options: argparse.Namespace) -> dict[str, float]:
    """A cold and a warm process: {"cold CPU s": ..., ...}; what is measured within a process, in the warm one."""
    with tempfile.TemporaryDirectory() as cache:
        cold = run_once(row, checkout, pathlib.Path(cache), options)
        warm = run_once(row, checkout, pathlib.Path(cache), options)
    measures = {"cold CPU s": cold["CPU s"], "warm CPU s": warm["CPU s"]}
    measures |= {f"cold {name}": cold[name] for name in cold if name.startswith("CPU s to")}
    measures |= {"programs": cold["programs"], "peak MB": cold["peak MB"]}
    outside = ("CPU s", "programs", "peak MB")
    return measures | {name: warm[name] for name in warm if name not in outside and not name.startswith("CPU s to")}


def table(runs: Mapping[str, list[dict[str, float]]]) -> list[tuple[str, ...]]:
    """(measure, median of each checkout, median ratio of the first to the second) of runs that took turns."""
    ours, *others = runs.values()
    lines = []
    for name in ours[0]:
        medians = [statistics.median(run[name] for run in column) for column in runs.values()]
        cells = [f"{median:.0f}" if median >= 100 or name == "programs" else f"{median:.2f}" for median in medians]
        for other in others:
            ratios = [one[name] / two[name] for one, two in zip(ours, other, strict=True) if two[name]]
            cells.append(f"{statistics.median(ratios):.2f}" if ratios else "")
        lines.append((name, *cells))
    return lines


def main() -> None:
    parser = parser_of(__doc__, repeats=3, core=0, model="", beside="")
    parser.add_argument("--rows", nargs="+", choices=ROWS, help="all that need no --model, if left out")
    options = parser.parse_args()
    rows = options.rows or [name for name in ROWS if name not in OF_MODEL or options.model]
    if missing := [name for name in rows if name in OF_MODEL and not options.model]:
        parser.error(f"{missing[0]} needs --model FILE")
    checkouts = {"this": ROOT}
    if options.beside:
        checkouts[options.beside] = pathlib.Path(options.beside).resolve()
    options.model = str(pathlib.Path(options.model).expanduser().resolve()) if options.model else ""
    print(host())
    print_head("row", "measure", *checkouts, *(["ratio"] if options.beside else []))
    for name in rows:
        row = ROWS[name]
        subjects = {
            checkout: lambda _, path=path, row=row: cold_and_warm(row, path, options)
            for checkout, path in checkouts.items()
        }
        for line in table(in_turns(subjects, options.repeats)):
            print_row(name, *line)


if __name__ == "__main__":
    main()
