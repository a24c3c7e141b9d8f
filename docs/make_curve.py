"""The learning curve of MS-GRPO and README's number, from runs of the demo under several seeds: `make curve`.

python docs/make_curve.py runs/curve/0 runs/curve/1 ...
"""

import pathlib
import sys

from nlrl_jax.run import results
from nlrl_jax.run.plots import learning_curve
from nlrl_jax.statistics import estimate

PICTURE = pathlib.Path(__file__).with_name("learning_curve.png")


def main(run_dirs: list[str]) -> None:
    runs = [results.read(pathlib.Path(run_dir)) for run_dir in run_dirs]
    before = [run["before"]["success"] for run in runs]
    after = [run["after"]["success"] for run in runs]
    learning_curve(run_dirs, ["success", "eval/success"], PICTURE, before={"eval/success": sum(before) / len(before)})
    print(f"greedy success: {sum(before) / len(before):.3f} -> {estimate(after).text('.3f')} ({len(runs)} seeds)")
    print(f"picture: {PICTURE}")


if __name__ == "__main__":
    main(sys.argv[1:])
