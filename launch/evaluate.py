"""Plays a model greedily from fixed initial states, on any variant of a game.

    python -m launch.evaluate --run_dir runs/demo --game frozen_lake_slippery --episodes 500
    python -m launch.evaluate --model smollm2 --game snake --episodes 8 --max_tokens 100

With --run_dir the model, the prompt form and the latest checkpoint are those of the run; else --model
and perhaps --adapter. The same --seed always gives the same initial states.
"""

from __future__ import annotations

import json

import jax
from absl import flags

from launch import setup

FLAGS = flags.FLAGS
setup.define_player_flags()
flags.DEFINE_integer("episodes", 50, "episodes; their initial states depend on --seed alone")
flags.DEFINE_boolean("json", False, "print one line of JSON")


def main(argv: list[str]) -> None:
    del argv
    player = setup.player()
    evaluate = setup.evaluator(player.policy, player.game, FLAGS.episodes, FLAGS.max_turns, FLAGS.max_turns, FLAGS.seed)
    summary = setup.summarize(jax.device_get(evaluate(player.variables)), player.game)
    if FLAGS.json:
        print(json.dumps({"game": player.game.name, **summary}))
    else:
        print(f"{player.name} on {player.game.name}, greedy, seed {FLAGS.seed}:")
        for name, value in summary.items():
            print(f"  {name:16} {value:.4g}")


if __name__ == "__main__":
    setup.run(main)
