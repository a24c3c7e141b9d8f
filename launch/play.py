"""Shows one greedy episode in the terminal: the board, what the model wrote, what it did.

python -m launch.play --model nano --game frozen_lake --seed 3
python -m launch.play --run_dir runs/demo --seed 3
"""

from __future__ import annotations

import jax
from absl import flags

from launch import setup
from nlrl_jax.run.transcript import print_transcript, transcripts

FLAGS = flags.FLAGS
setup.define_player_flags()


def main(argv: list[str]) -> None:
    del argv
    player = setup.player()
    evaluate = setup.evaluator(player.policy, player.game, 1, FLAGS.max_turns, FLAGS.max_turns, FLAGS.seed)
    episodes = jax.device_get(evaluate(player.variables))
    print_transcript(transcripts(player.policy, player.game, episodes, [0])[0])


if __name__ == "__main__":
    setup.run(main)
