"""Makes the built-in model "nano_board": a tokenizer for board games and a decoder of about a million weights.

    python -m launch.pretrain_nano_board --out nlrl_jax/assets/nano_board

It learns to read, the rules, and the form of the replies it will be asked for, in tic-tac-toe and breakthrough: what
stands where, what a move leads to and whether that wins, which squares would complete a row, which moves there are. The
moves and evaluations it learns to write are drawn by lot. So it names legal moves and writes proper evaluations, and
does not know a good one from a bad one: what a large model knows of games it has read the rules of, and no more.
Weights are kept in bfloat16.
"""

from __future__ import annotations

import pathlib
import random
import time

import jax
import jax.numpy as jnp
from absl import flags

from envs.breakthrough import prompts as breakthrough_prompts
from envs.breakthrough import rule_based as breakthrough_scripts
from envs.breakthrough.rules import board_game as breakthrough
from envs.tic_tac_toe import prompts as tic_tac_toe_prompts
from envs.tic_tac_toe import rule_based as tic_tac_toe_scripts
from envs.tic_tac_toe.rules import board_game as tic_tac_toe
from launch.nano_tokenizer import train_tokenizer
from nlrl_jax.algorithms.sft import SFTConfig, fit, tokenize
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.rollouts.board_games import random_views
from nlrl_jax.run import app
from nlrl_jax.types import Chat
from nlrl_jax.weights import huggingface

VOCAB_SIZE = 768

Pair = tuple[Chat, str]


def tic_tac_toe_pairs(num: int, seed: int) -> list[Pair]:
    """Reading, rules, and replies by lot, at `num` positions of random games: five pairs each."""
    rng, ask, tell = random.Random(seed), tic_tac_toe_prompts.roles("compact"), tic_tac_toe_scripts
    pairs = []
    for view in random_views(tic_tac_toe(), num, seed):
        policy, action = ask.policy(view), rng.choice(view.legal)
        value = ask.value(view, action)
        cells = tic_tac_toe_prompts.squares(view.board)
        after = cells.replace(action, view.player)
        line = rng.choice(tell.ROWS)
        board, move = (chat.messages[-1]["content"] for chat in (policy, value))
        read = [("free?", " ".join(view.legal)), (" ".join(line) + "?", _on(cells, line))]
        question, answer = rng.choice(read)
        pairs.append((Chat.of(f"{board}\n{question}"), answer))
        question, answer = rng.choice([("wins?", _winner(after)), (" ".join(line) + "?", _on(after, line))])
        pairs.append((Chat.of(f"{move}\n{question}"), answer))
        pairs.append((policy, tell.blind_policy({"view": view}, rng)))
        for judged in (action, rng.choice(view.legal)):
            pairs.append((ask.value(view, judged), tell.blind_value({"view": view, "action": judged}, rng)))
    return pairs


def _on(cells: str, line: str) -> str:
    """What stands on a line: "O 5 X"."""
    return " ".join(cells[int(n) - 1] for n in line)


def _winner(cells: str) -> str:
    """Who has three in a row, and where: "O: 1 5 9", or "nobody"."""
    won = [line for line in tic_tac_toe_scripts.ROWS if len({cells[int(n) - 1] for n in line}) == 1]
    return f"{cells[int(won[0][0]) - 1]}: {' '.join(won[0])}" if won else "nobody"


def breakthrough_pairs(num: int, seed: int) -> list[Pair]:
    """Reading, rules, and evaluations by lot, at `num` positions of random games: two pairs each."""
    rng, ask, tell = random.Random(seed), breakthrough_prompts.roles("compact"), breakthrough_scripts
    pairs = []
    for view in random_views(breakthrough(), num, seed):
        value = ask.value(view)
        piece = rng.choice("wb")
        squares = breakthrough_prompts.squares(view.board, piece)
        start = rng.choice(view.legal)[:2]
        read = [(f"{piece}?", " ".join(squares)), (f"{start}?", " ".join(m for m in view.legal if m[:2] == start))]
        question, answer = rng.choice(read)
        pairs.append((Chat.of(f"{value.messages[-1]['content']}\n{question}"), answer))
        pairs.append((value, tell.blind({"view": view}, rng)))
    return pairs


def tokenizer_for(pairs: list[Pair], folder: pathlib.Path) -> Tokenizer:
    """A tokenizer trained on what is asked and written."""
    texts = ["system\n", "user\n", "assistant\n"] * len(pairs)
    texts += [text for chat, reply in pairs for text in (chat.messages[-1]["content"], reply)]
    return train_tokenizer(texts, folder, VOCAB_SIZE, by_blanks=True)


def main(argv: list[str]) -> None:
    del argv
    given, clock = flags.FLAGS, time.monotonic()
    out = pathlib.Path(given.out)
    pairs = tic_tac_toe_pairs(given.positions, 0) + breakthrough_pairs(given.positions, 0)
    tokenizer = tokenizer_for(pairs[:2000] + pairs[-2000:], out)
    config = ModelConfig(
        vocab_size=VOCAB_SIZE, hidden_size=128, intermediate_size=384, num_layers=4, num_heads=4, num_kv_heads=4,
        head_dim=32, max_positions=4096, tie_embeddings=True,
    )  # fmt: skip
    model = Transformer(config)
    examples = tokenize(tokenizer, pairs)
    print(f"{config.num_params} weights, {tokenizer.vocab_size} tokens, {len(examples)} examples", flush=True)
    learning = SFTConfig(
        learning_rate=given.learning_rate, schedule="cosine", warmup=0.03, epochs=1, batch_size=8, max_length=256,
        packed=True, train="params", b2=0.95, weight_decay=0.01,
    )  # fmt: skip
    variables = {"params": init_params(model, jax.random.key(0))}

    def report(done, total, metrics):
        if done % 100 == 0 or done == total:
            print(f"{done}/{total} loss {metrics['loss']:.4f} ({time.monotonic() - clock:.0f} s)", flush=True)

    variables, _ = fit(model, variables, examples, learning, report)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), variables["params"])
    huggingface.save(out, config, params, tokenizer)
    print(f"wrote {out}")


def define_flags() -> None:
    flags.DEFINE_string("out", "nlrl_jax/assets/nano_board", "folder to write the model to")
    flags.DEFINE_integer("positions", 10_000, "positions of each game")
    flags.DEFINE_float("learning_rate", 2e-3, "peak learning rate, cosine decay to zero")


if __name__ == "__main__":
    define_flags()
    app.run(main)
