"""Makes the built-in models: their tokenizers, and decoders of about a million weights.

    nlrl-jax pretrain_nano --out models/nano
    nlrl-jax pretrain_nano --games boards --out models/nano_board
    nlrl-jax pretrain_nano --games babyai --episodes 24000 --steps 12000 --learning_rate 3e-3 \\
        --out models/nano_babyai

Grids (FrozenLake and Snake): pretrained on demonstrations of mixed quality (`envs/walkers.py`), so the model has the
reply format and plays far from optimally. Every batch is new: games are reset, walked and rendered inside the training
step.

Boards (tic-tac-toe and breakthrough): the model learns to read, the rules, and the form of its later replies: what
stands where, what a move leads to and whether that wins, which squares would complete a row, which moves
there are. The moves and evaluations it learns to write are random. So it names legal moves and writes proper
evaluations, and does not know a good one from a bad one. Weights are kept in bfloat16.

BabyAI-Text: the model reads transcripts of walkers of mixed quality (`envs/babyai/corpus.py`): it proposes actions,
imagines observations and judges steps. See `nlrl_jax.run.nano`.

The result is an ordinary Hugging Face folder (Llama architecture), its weights in bfloat16 but for grids; `--dtype
float32` computes with it as with the built-in models.
"""

from __future__ import annotations

import itertools
import pathlib
import random
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags

from nlrl_jax import envs
from nlrl_jax.algorithms.demonstrations import demonstration_loss, demonstrations
from nlrl_jax.algorithms.sft import SFTConfig, fit, make_sft_step, tokenize
from nlrl_jax.config import MOST_SEED
from nlrl_jax.envs.babyai import corpus as babyai
from nlrl_jax.envs.breakthrough import prompts as breakthrough_prompts
from nlrl_jax.envs.breakthrough import rule_based as breakthrough_scripts
from nlrl_jax.envs.tic_tac_toe import prompts as tic_tac_toe_prompts
from nlrl_jax.envs.tic_tac_toe import rule_based as tic_tac_toe_scripts
from nlrl_jax.envs.walkers import demonstrate, reply_template
from nlrl_jax.files import write_json
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.rollouts import text_games
from nlrl_jax.rollouts.board_games import random_views
from nlrl_jax.run import app, directory, nano
from nlrl_jax.run import flags as config_flags
from nlrl_jax.run.host_games.prompts import PromptConfig, write_form
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.text.prompts import TAGS
from nlrl_jax.text.template import Choice
from nlrl_jax.types import Chat, Sampling
from nlrl_jax.weights import huggingface

GAMES = ("frozen_lake", "snake")
TRAIN_ON = {"frozen_lake": {"maps": "train"}}  # the held-out maps stay unseen
BATCH = {"frozen_lake": 128, "snake": 64}
VOCAB_SIZE = {"grids": 512, "boards": 768}
ONLY_FOR = {  # kinds of games -> options without effect for the others
    ("grids",): ("snake_every", "skilled_share", "habit", "snake_habit", "tokenizer"),
    ("boards",): ("positions",),
    ("babyai",): ("episodes",),
    ("grids", "babyai"): ("steps", "seed", "init_from"),
}
MARK = "pretrain_nano.json"  # in a folder that this script has written
MAX_REPLY = 8  # three actions, two separators, the two tags and the end


def nano_config(games: str) -> ModelConfig:
    return ModelConfig(
        vocab_size=VOCAB_SIZE[games], hidden_size=128, intermediate_size=384, num_layers=4, num_heads=4, num_kv_heads=4,
        head_dim=32, max_positions=4096 if games == "boards" else 1024, tie_embeddings=True,
    )  # fmt: skip


def train_tokenizer(texts: list[str], folder: pathlib.Path, vocab_size: int, by_blanks: bool = False) -> Tokenizer:
    """See `nano.train_tokenizer`; the reply's tags are tokens of their own."""
    tags = [f"<{slash}{tag}>" for tag in TAGS["paper"] for slash in ("", "/")]
    return nano.train_tokenizer(texts, folder, vocab_size, r" ?[^\s]+|\s" if by_blanks else "", tags)


def corpus(key: jax.Array) -> list[str]:
    """Prompts of every game in both forms, and replies: what the tokenizer is trained on."""
    reply = reply_template(envs.make("frozen_lake", prompt="compact"), "compact")
    replies = [actions for n in (1, 2, 3) for actions in itertools.product(range(4), repeat=n)]  # of one to three
    texts = [reply.render({"shown": actions, "num_shown": len(actions)}) for actions in replies] * 20
    texts += ["system\n", "user\n", "assistant\n"] * 500
    for name, prompt in itertools.product(GAMES, ("paper", "compact")):
        game = envs.make(name, prompt=prompt)
        symbols = {option for part in game.board.parts if isinstance(part, Choice) for option in part.options}
        texts += [f"{symbol} {neighbour}\n" for symbol, neighbour in itertools.product(sorted(symbols), repeat=2)] * 40
        states = text_games.reset(game, key, 200)
        fields = jax.tree.map(np.asarray, jax.vmap(game.fields)(states))
        for i in range(200):
            texts.append(f"{game.rules}\n{game.observation.render({k: v[i] for k, v in fields.items()})}")
    return texts


def make_step(policy: LanguageAgentPolicy, game, optimizer: optax.GradientTransformation):
    """One pretraining step: new games, their demonstrations as text, SFT on the replies."""
    options = flags.FLAGS
    habit = options.snake_habit if game.name == "snake" else options.habit

    def walkers(key: jax.Array):
        return demonstrate(game, key, BATCH[game.name], options.skilled_share, habit)

    show = demonstrations(policy, reply_template(game, "compact"), walkers)
    step = make_sft_step(demonstration_loss(policy), optimizer, "params")

    def update(variables, opt_state, key):
        return step(variables, opt_state, show(key))

    return jax.jit(update, donate_argnums=(0, 1))


def pretrain_grids(out: pathlib.Path) -> None:
    """Writes nano."""
    options = flags.FLAGS
    key = jax.random.key(options.seed)
    tokenizer = (
        Tokenizer.from_pretrained(options.tokenizer)
        if options.tokenizer
        else train_tokenizer(corpus(key), out, VOCAB_SIZE["grids"])
    )
    config = nano_config("grids")
    model = Transformer(config)
    params = init_params(model, jax.random.fold_in(key, 1))
    if options.init_from:
        _, params = huggingface.load(options.init_from, dtype="float32", param_dtype="float32")
    rate = options.learning_rate
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, 50, options.steps, rate / 10)
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
    for i in range(options.steps):
        name = "snake" if (i + 1) % options.snake_every == 0 else "frozen_lake"
        variables, opt_state, metrics = steps[name](variables, opt_state, jax.random.fold_in(key, 2 + i))
        if i % 200 in (198, 199) or i == 98 or i == options.steps - 1:
            episodes = evaluate[name](variables, jax.random.key(options.seed + 1))
            print(
                f"{i + 1:5d} {name:12} loss {metrics['loss']:.4f} "
                f"greedy return {jnp.mean(jnp.sum(episodes.turns.reward, axis=0)):.3f} "
                f"success {jnp.mean(episodes.success):.3f} ({time.monotonic() - start:.0f} s)",
                flush=True,
            )
    huggingface.save(out, config, variables["params"], tokenizer)
    print(f"wrote {out}")


Pair = tuple[Chat, str]


def tic_tac_toe_pairs(num: int, seed: int) -> list[Pair]:
    """Reading, rules, and replies at random, at `num` positions of random games: five pairs each."""
    rng, ask, tell = random.Random(seed), tic_tac_toe_prompts.roles("compact"), tic_tac_toe_scripts
    pairs = []
    for view in random_views(envs.make_board("tic_tac_toe"), num, seed):
        policy, action = ask.policy(view), rng.choice(view.legal)
        value = ask.value(view, action)
        cells = tic_tac_toe_prompts.squares(view.board)
        after = cells.replace(action, view.player)
        line = rng.choice(tell.ROWS)
        board, move = (chat.messages[-1]["content"] for chat in (policy, value))
        questions = [("free?", " ".join(view.legal)), (" ".join(line) + "?", _on(cells, line))]
        question, answer = rng.choice(questions)
        pairs.append((Chat.of(f"{board}\n{question}"), answer))
        question, answer = rng.choice([("wins?", _winner(after)), (" ".join(line) + "?", _on(after, line))])
        pairs.append((Chat.of(f"{move}\n{question}"), answer))
        pairs.append((policy, tell.random_policy({"view": view}, rng)))
        for judged in (action, rng.choice(view.legal)):
            pairs.append((ask.value(view, judged), tell.random_value({"view": view, "action": judged}, rng)))
    return pairs


def _on(cells: str, line: str) -> str:
    """What stands on a line: "O 5 X"."""
    return " ".join(cells[int(n) - 1] for n in line)


def _winner(cells: str) -> str:
    """Who has three in a row, and where: "O: 1 5 9", or "nobody"."""
    won = [line for line in tic_tac_toe_scripts.ROWS if len({cells[int(n) - 1] for n in line}) == 1]
    return f"{cells[int(won[0][0]) - 1]}: {' '.join(won[0])}" if won else "nobody"


def breakthrough_pairs(num: int, seed: int) -> list[Pair]:
    """Reading, rules, and evaluations at random, at `num` positions of random games: two pairs each."""
    rng, ask, tell = random.Random(seed), breakthrough_prompts.roles("compact"), breakthrough_scripts
    pairs = []
    for view in random_views(envs.make_board("breakthrough"), num, seed):
        value = ask.value(view)
        piece = rng.choice("wb")
        squares = breakthrough_prompts.squares(view.board, piece)
        start = rng.choice(view.legal)[:2]
        questions = [(f"{piece}?", " ".join(squares)), (f"{start}?", " ".join(m for m in view.legal if m[:2] == start))]
        question, answer = rng.choice(questions)
        pairs.append((Chat.of(f"{value.messages[-1]['content']}\n{question}"), answer))
        pairs.append((value, tell.blind({"view": view}, rng)))
    return pairs


def pretrain_boards(out: pathlib.Path) -> None:
    """Writes nano_board."""
    options, clock = flags.FLAGS, time.monotonic()
    pairs = tic_tac_toe_pairs(options.positions, 0) + breakthrough_pairs(options.positions, 0)
    sample = pairs[:2000] + pairs[-2000:]
    texts = ["system\n", "user\n", "assistant\n"] * len(sample)
    texts += [text for chat, reply in sample for text in (chat.messages[-1]["content"], reply)]
    tokenizer = train_tokenizer(texts, out, VOCAB_SIZE["boards"], by_blanks=True)
    config = nano_config("boards")
    model = Transformer(config)
    examples = tokenize(tokenizer, pairs)
    print(f"{config.num_params} weights, {tokenizer.vocab_size} tokens, {len(examples)} examples", flush=True)
    learning = SFTConfig(
        learning_rate=options.learning_rate, schedule="cosine", warmup=0.03, epochs=1, batch_size=8, max_length=256,
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


def main(argv: list[str]) -> None:
    del argv
    options = flags.FLAGS
    for kind, names in ONLY_FOR.items():
        if options.games not in kind:
            config_flags.leave_out(f"for --games {options.games}, only for {', '.join(kind)}", *names)
    if options.learning_rate <= 0:
        raise ValueError(f"--learning_rate is {options.learning_rate}; it must be above 0")
    if options.init_from:
        huggingface.read_config(options.init_from)
    out = directory.output_folder("out", options.out, MARK)
    out.mkdir(parents=True, exist_ok=True)
    settings = {name: flags.FLAGS[name].value for name in ("games", *itertools.chain(*ONLY_FOR.values()))}
    write_json(out / MARK, settings, indent=2)
    if options.games == "babyai":
        pairs = list(babyai.corpus(options.episodes, 1 + options.seed))
        training = options.steps, options.learning_rate, options.seed, options.init_from
        nano.pretrain(out, nano.Language(babyai.NAMES, babyai.PLACE), pairs, *training)
        write_form(out, PromptConfig(prompt="compact", examples=0), options.out)
    else:
        pretrain_boards(out) if options.games == "boards" else pretrain_grids(out)


def define_flags() -> None:
    flags.DEFINE_enum("games", "grids", ["grids", "boards", "babyai"], "what the model learns to read")
    flags.DEFINE_string("out", "", "folder to write the model to: new, empty, or of an earlier pretrain_nano")
    flags.DEFINE_float("learning_rate", 3e-3, "peak learning rate, cosine decay")
    flags.DEFINE_integer("steps", 700, "grids, babyai: training steps", lower_bound=1)
    flags.DEFINE_integer("snake_every", 8, "grids: one of this many steps is Snake, the rest FrozenLake", lower_bound=1)
    flags.DEFINE_float("skilled_share", 0.5, "grids: share of walkers that see holes and bodies", 0, 1)
    flags.DEFINE_boolean("habit", False, "grids: FrozenLake's unskilled walkers always go down first")
    flags.DEFINE_boolean(
        "snake_habit", False, "grids: Snake's unskilled walkers have a habit too, and do not look for apples"
    )
    flags.DEFINE_integer("seed", 0, "grids, babyai: random seed", 0, MOST_SEED - 1)
    flags.DEFINE_string("init_from", "", "grids, babyai: start from the weights in this folder")
    flags.DEFINE_string("tokenizer", "", "grids: keep the tokenizer in this folder instead of training one")
    flags.DEFINE_integer("episodes", 12_000, "babyai: episodes to read", lower_bound=1)
    flags.DEFINE_integer("positions", 10_000, "boards: positions of each game", lower_bound=1)


if __name__ == "__main__":
    define_flags()
    app.run(main)
