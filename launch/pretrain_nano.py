"""Makes the built-in nano model: its tokenizer, and a decoder of about a million weights.

    python -m launch.pretrain_nano --out nlrl_jax/assets/nano

The model is pretrained on demonstrations of mixed quality (see `envs/walkers.py`): it has the
reply format, and plays far from optimally. Every batch is new: games are reset, walked and rendered
inside the training step. The result is an ordinary Hugging Face folder (Llama architecture).
"""

from __future__ import annotations

import itertools
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags

import envs
from envs import walkers as demonstrations
from envs.walkers import reply_template
from launch.nano_tokenizer import train_tokenizer
from nlrl_jax.algorithms.sft import demonstration_loss, make_sft_step
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.rollouts import text_games
from nlrl_jax.run import app
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.text.template import Choice
from nlrl_jax.types import Sampling
from nlrl_jax.weights import huggingface

FLAGS = flags.FLAGS
flags.DEFINE_string("out", "nlrl_jax/assets/nano", "folder to write the model to")
flags.DEFINE_integer("steps", 700, "training steps")
flags.DEFINE_integer("snake_every", 8, "one step in so many is Snake, the rest FrozenLake")
flags.DEFINE_float("learning_rate", 3e-3, "peak learning rate, cosine decay to a tenth")
flags.DEFINE_float("skilled_share", 0.5, "share of demonstrations by walkers that see holes and bodies")
flags.DEFINE_boolean("habit", False, "FrozenLake's unskilled walkers always go down first")
flags.DEFINE_boolean("snake_habit", False, "Snake's unskilled walkers too, and look for no apples")
flags.DEFINE_integer("seed", 0, "random seed")
flags.DEFINE_string("init_from", "", "go on from the weights in this folder")
flags.DEFINE_string("tokenizer", "", "keep the tokenizer in this folder instead of training one")

GAMES = ("frozen_lake", "snake")
TRAIN_ON = {"frozen_lake": {"maps": "train"}}  # the held-out maps stay unseen
BATCH = {"frozen_lake": 128, "snake": 64}
VOCAB_SIZE = 512
MAX_REPLY = 8  # three actions, two separators, the two tags and the end


def nano_config() -> ModelConfig:
    return ModelConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=384,
        num_layers=4,
        num_heads=4,
        num_kv_heads=4,
        head_dim=32,
        max_positions=1024,
        tie_embeddings=True,
    )


def corpus(key: jax.Array) -> list[str]:
    """Prompts of every game in both forms, and replies: what the tokenizer is trained on."""
    reply = reply_template(envs.make("frozen_lake", prompt="compact"), "compact")
    texts = [reply.render({"shown": actions, "num_shown": len(actions)}) for actions in reply_actions()] * 20
    texts += ["system\n", "user\n", "assistant\n"] * 500
    for name, prompt in itertools.product(GAMES, ("paper", "compact")):
        game = envs.make(name, prompt=prompt)
        symbols = {option for part in game.board.parts if isinstance(part, Choice) for option in part.options}
        texts += [f"{one} {other}\n" for one, other in itertools.product(sorted(symbols), repeat=2)] * 40
        states = text_games.reset(game, key, 200)
        fields = jax.tree.map(np.asarray, jax.vmap(game.fields)(states))
        for i in range(200):
            texts.append(f"{game.rules}\n{game.observation.render({k: v[i] for k, v in fields.items()})}")
    return texts


def reply_actions() -> list[tuple[int, ...]]:
    """All replies of one to three actions out of four."""
    return [actions for n in (1, 2, 3) for actions in itertools.product(range(4), repeat=n)]


def make_step(policy: LanguageAgentPolicy, game, optimizer: optax.GradientTransformation):
    """One pretraining step: new games, their demonstrations as text, SFT on the replies."""
    habit = FLAGS.snake_habit if game.name == "snake" else FLAGS.habit
    shown = lambda key: demonstrations.demonstrate(game, key, BATCH[game.name], FLAGS.skilled_share, habit)
    loss_of = demonstration_loss(policy, reply_template(game, "compact"), shown)

    return jax.jit(make_sft_step(loss_of, optimizer, "params"), donate_argnums=(0, 1))


def main(argv):
    del argv
    out = pathlib.Path(FLAGS.out)
    key = jax.random.key(FLAGS.seed)
    tokenizer = (
        Tokenizer.from_pretrained(FLAGS.tokenizer) if FLAGS.tokenizer else train_tokenizer(corpus(key), out, VOCAB_SIZE)
    )
    config = nano_config()
    model = Transformer(config)
    params = init_params(model, jax.random.fold_in(key, 1))
    if FLAGS.init_from:
        _, params = huggingface.load(FLAGS.init_from)
    schedule = optax.warmup_cosine_decay_schedule(0.0, FLAGS.learning_rate, 50, FLAGS.steps, FLAGS.learning_rate / 10)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.95, weight_decay=0.01))
    variables, opt_state = {"params": params}, optimizer.init(params)
    sampling = Sampling(max_tokens=MAX_REPLY + 2, temperature=0.0)
    games = {name: envs.make(name, prompt="compact", **TRAIN_ON.get(name, {})) for name in GAMES}
    policies = {n: LanguageAgentPolicy.for_game(g, model, tokenizer, sampling, "compact") for n, g in games.items()}
    steps = {name: make_step(policies[name], games[name], optimizer) for name in GAMES}
    evaluate = {
        name: jax.jit(
            lambda variables, key, name=name: text_games.play(
                policies[name], games[name], variables, key, text_games.reset(games[name], key, 200), 20, 20
            )
        )
        for name in GAMES
    }
    print(f"{config.num_params} weights, {tokenizer.vocab_size} tokens", flush=True)
    start = time.monotonic()
    for i in range(FLAGS.steps):
        name = "snake" if (i + 1) % FLAGS.snake_every == 0 else "frozen_lake"
        variables, opt_state, metrics = steps[name](variables, opt_state, jax.random.fold_in(key, 2 + i))
        if i % 200 in (198, 199) or i == 98 or i == FLAGS.steps - 1:
            episodes = evaluate[name](variables, jax.random.key(FLAGS.seed + 1))
            print(
                f"{i + 1:5d} {name:12} loss {metrics['loss']:.4f} "
                f"greedy return {jnp.mean(jnp.sum(episodes.turns.reward, axis=0)):.3f} "
                f"success {jnp.mean(episodes.success):.3f} ({time.monotonic() - start:.0f} s)",
                flush=True,
            )
    huggingface.save(out, config, variables["params"], tokenizer)
    print(f"wrote {out}")


if __name__ == "__main__":
    app.run(main)
