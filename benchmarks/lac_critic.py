"""What an adapter that has learned actions does to the critic: one table for a run of `launch.iterate_lac`.

    PYTHONPATH=. python benchmarks/lac_critic.py runs/loop

The 18 held-out trajectories of `launch.finetune_lac` (12 successes, 6 failures, seed 0), read by the initial weights
and with each round's adapter switched on for every call, as `--adapter all` would: -log p per token of observations,
reflections and actions, and the accuracy of GOOD and BAD behind "This step is".
"""

from __future__ import annotations

import pathlib
import sys

import envs
from nlrl_jax.algorithms import lac_tuning
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.run import models, planning
from nlrl_jax.run.directory import read_config
from nlrl_jax.run.report import markdown
from nlrl_jax.weights import peft

HELD_OUT = (12, 6)
CACHE_MB = 256


def main(argv: list[str]) -> None:
    run_dir = pathlib.Path(argv[0])
    run = read_config(run_dir)
    lora = LoraConfig(run["lora_rank"], run["lora_alpha"])
    base = models.local_model(run["model"], lora=lora, chat=False, cache_mb=CACHE_MB)
    game, prompts = envs.make_host(run["game"]), planning.PromptConfig(run["prompt"], run["examples"])
    room = planning.context_of(base, run["context_tokens"])
    dialogue = planning.dialogue_of(METHODS["lac"], game, prompts, run["model"], base.tokenizer, room)
    held_out = envs.demonstrations(run["game"], *HELD_OUT, 0, True)
    lines = [line for one in held_out for line in lac_tuning.lines(one.history, actions=True)]
    rows = []
    for k in range(run["rounds"] + 1):
        model, folder = base, run_dir / "rounds" / str(k)
        if k:
            if not (folder / "learned.json").is_file():
                break
            _, adapter = peft.load(folder / "adapter", base.model.config)
            model = base.with_variables({**base.variables, "lora": adapter})
        found = lac_tuning.evaluate(model, dialogue, lines)
        rows.append({"rounds": str(k), **{name: f"{value:.3f}" for name, value in found.items()}})
        print(rows[-1], flush=True)
    print(f"{len(lines)} lines of {len(held_out)} trajectories\n\n{markdown(rows)}")


if __name__ == "__main__":
    main(sys.argv[1:])
