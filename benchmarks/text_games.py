"""FrozenLake through a language model: one program, against ordinary Python loops over the same model.

    python -m benchmarks.text_games                     # the nano model: a whole MS-GRPO iteration
    python -m benchmarks.text_games --model smollm2     # environment turns a second of 8 and 32 episodes

Three ways to play the same episodes with the same weights, sampling and prompts:
- "one program": `text_games.play` under jit; text, parsing and game on the device, the prefix computed once;
- "host, batched": strings, `tokenizer.encode`, parsing and game steps in Python; all chats of a turn in one call;
- "host, one by one": the same with one chat a call.
The host loops call the same jitted `generate` on whole prompts, padded to a bucket. An iteration adds
the same jitted gradient step to each. Ways take turns within a repeat; cells are medians.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.timing import in_turns, machine, medians, parser_of, print_head, print_row, timed
from launch.train_ms_grpo import PRESETS, TrainConfig, build
from nlrl_jax import losses
from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig, init_state, make_update, optimizer
from nlrl_jax.algorithms.policy_gradient import loss_and_grad, micro_batches
from nlrl_jax.config import make
from nlrl_jax.lm.generate import generate
from nlrl_jax.returns import group_advantage
from nlrl_jax.rollouts import text_games
from nlrl_jax.run import players
from nlrl_jax.text.parser import ReplyFormat, reference_parse
from nlrl_jax.text.policy import LanguageAgentPolicy, Turn
from nlrl_jax.text.prompts import TAGS, chat_prompt
from nlrl_jax.types import TextGame


class HostLoop:
    """Episodes as most code plays them: Python objects around a sampler."""

    def __init__(self, policy: LanguageAgentPolicy, game: TextGame, prompt: str, one_by_one: bool):
        self.policy, self.game, self.one_by_one = policy, game, one_by_one
        self.template = chat_prompt(game, policy.tokenizer.render_chat, prompt, policy.sampling.max_tokens)
        self.format = ReplyFormat(tags=TAGS[prompt], actions=game.actions, max_actions=game.max_actions_per_turn)
        longest = len(policy.template.prefix) + policy.template.max_length
        self.bucket = -(-longest // 32) * 32
        self.sample = jax.jit(
            lambda variables, tokens, lengths, key: generate(
                policy.model, variables, tokens, lengths, key, policy.sampling, policy.eos_ids
            )
        )
        self.fields = jax.jit(game.fields)
        self.step = jax.jit(game.env.step_env)

    def complete(self, variables, prompts: list[list[int]], key) -> list[tuple[list[int], list[int]]]:
        """(prompt ids, reply ids) of each prompt."""
        tokens = np.zeros((len(prompts), self.bucket), np.int32)
        for row, ids in zip(tokens, prompts):
            row[self.bucket - len(ids) :] = ids
        lengths = jnp.array([len(ids) for ids in prompts])
        out = jax.device_get(self.sample(variables, jnp.asarray(tokens), lengths, key))
        return [(ids, list(out.tokens[i, : out.lengths[i]])) for i, ids in enumerate(prompts)]

    def play(self, variables, key, states: list[Any], max_turns: int, max_steps: int) -> list[dict]:
        episodes = [{"state": s, "turns": [], "return": 0.0, "over": False, "steps": 0} for s in states]
        for t in range(max_turns):
            active = [e for e in episodes if not e["over"] and e["steps"] < max_steps]
            if not active:
                break
            texts = [
                self.template.render({k: np.asarray(v) for k, v in self.fields(e["state"]).items()}) for e in active
            ]
            prompts = [self.policy.tokenizer.encode(text) for text in texts]
            keys = jax.random.split(jax.random.fold_in(key, t), len(active))
            if self.one_by_one:
                said = [self.complete(variables, [p], k)[0] for p, k in zip(prompts, keys)]
            else:  # padded to the number of episodes, so that one program serves every turn
                padded = prompts + prompts[:1] * (len(episodes) - len(prompts))
                said = self.complete(variables, padded, keys[0])[: len(active)]
            for e, (prompt, reply), k in zip(active, said, keys):
                text = self.policy.tokenizer.decode(reply).encode()
                parsed = reference_parse(text, len(reply), self.format)
                reward = -0.5 * parsed.num_invalid + float(parsed.format_penalty)
                for i, action in enumerate(parsed.actions):
                    if action >= 0 and not e["over"] and e["steps"] < max_steps:
                        _, e["state"], r, over, _ = self.step(
                            jax.random.fold_in(k, i), e["state"], action, self.game.params
                        )
                        reward += float(r)
                        e["over"], e["steps"] = bool(over), e["steps"] + 1
                e["turns"].append((prompt, reply))
                e["return"] += reward
        return episodes


def host_iteration(loop: HostLoop, learning: MSGRPOConfig, config: TrainConfig):
    """A whole iteration: the host loop, then the same gradient as one jitted call on padded arrays."""
    policy = dataclasses.replace(
        loop.policy, template=dataclasses.replace(loop.policy.template, prefix=np.zeros(0, np.int32))
    )
    reset = jax.jit(lambda key: text_games.reset(loop.game, key, learning.num_groups))

    @jax.jit
    def learn(state, turns, advantages):
        rows = micro_batches(turns, advantages, learning.micro_batch)
        loss, _, grads = loss_and_grad(policy, losses.ms_grpo, state.params, state.lora, rows, True, learning.remat)
        updates, opt_state = optimizer(learning).update(grads, state.opt_state, state.lora)
        return state.replace(lora=optax.apply_updates(state.lora, updates), opt_state=opt_state), loss

    def iterate(state, key):
        starts = jax.device_get(reset(key))
        states = [jax.tree.map(lambda x: x[i], starts) for i in range(learning.num_groups)]
        states = [s for s in states for _ in range(learning.group_size)]
        variables = {"params": state.params, "lora": state.lora}
        episodes = loop.play(variables, key, states, learning.max_turns, learning.max_steps)
        returns = np.array([e["return"] for e in episodes]).reshape(learning.num_groups, -1)
        weight = np.abs(np.asarray(group_advantage(jnp.asarray(returns)))) / learning.sampling_temperature
        noise = np.random.default_rng(0).gumbel(size=weight.shape)
        chosen = np.argsort(-(weight + noise), axis=-1)[:, : learning.group_sample]
        advantages = group_advantage(jnp.take_along_axis(jnp.asarray(returns), jnp.asarray(chosen), axis=-1))
        picked = [episodes[g * learning.group_size + i] for g, row in enumerate(chosen) for i in row]
        T, J, S, N = learning.max_turns, len(picked), loop.bucket, config.sampling.max_tokens
        turn = Turn(
            prompts=np.zeros((T, J, S), np.int32), prompt_lengths=np.ones((T, J), np.int32),
            replies=np.zeros((T, J, N), np.int32), reply_lengths=np.zeros((T, J), np.int32),
            log_probs=np.zeros((T, J, N), np.float32), ended=np.ones((T, J), bool), parsed=None,
        )  # fmt: skip
        active = np.zeros((T, J), bool)
        for j, episode in enumerate(picked):
            for t, (prompt, reply) in enumerate(episode["turns"]):
                turn.prompts[t, j, S - len(prompt) :] = prompt
                turn.replies[t, j, : len(reply)] = reply
                turn.prompt_lengths[t, j], turn.reply_lengths[t, j], active[t, j] = len(prompt), len(reply), True
        turns = text_games.Turns({}, turn, np.zeros((T, J), np.float32), *np.zeros((2, T, J), np.int32), active)
        return learn(state, turns, advantages.reshape(-1))

    return iterate


def played(ways: dict[str, Callable[[jax.Array], Any]], repeats: int) -> dict[str, list[tuple[float, Any]]]:
    """(seconds, result) of each way and repeat, after a call that compiles."""
    for way in ways.values():
        jax.block_until_ready(way(jax.random.key(0)))
    return in_turns({name: lambda n, way=way: timed(way, jax.random.key(n + 1)) for name, way in ways.items()}, repeats)


def rollouts(config: TrainConfig, sizes: list[int], repeats: int, one_by_one: bool) -> list[list[str]]:
    """Rows (episodes, way, turns a second, ratio to the batched loop)."""
    game, _, policy, params = build(config)
    learning = config.learning
    prompt = players.prompt_for(config.model, config.prompt)
    variables = {"params": params}
    rows = []
    for size in sizes:
        states = text_games.reset(game, jax.random.key(size), size)
        listed = [jax.tree.map(lambda x: x[i], states) for i in range(size)]
        device = jax.jit(
            lambda v, key, states: (
                text_games.play(policy, game, v, key, states, learning.max_turns, learning.max_steps).turns.active
            )
        )
        loops = {"host, batched": HostLoop(policy, game, prompt, one_by_one=False)}
        if one_by_one:
            loops = {"host, one by one": HostLoop(policy, game, prompt, one_by_one=True)} | loops

        def play_device(key):
            return int(np.sum(device(variables, key, states)))

        def play_host(name, key):
            episodes = loops[name].play(variables, key, listed, learning.max_turns, learning.max_steps)
            return sum(len(e["turns"]) for e in episodes)

        ways = {name: (lambda key, name=name: play_host(name, key)) for name in loops} | {"one program": play_device}
        runs = played(ways, repeats)
        speeds = medians({name: [turns / took for took, turns in each] for name, each in runs.items()})
        for name, speed in speeds.items():
            ratio = speed / speeds["host, batched"]
            rows.append([f"{size} episodes", name, f"{speed:.2f} turns/s", f"{ratio:.2f}"])
    return rows


def iterations(config: TrainConfig, repeats: int) -> list[list[str]]:
    """Rows (episodes, way, seconds an iteration, speed relative to the batched loop)."""
    game, _, policy, params = build(config)
    learning = config.learning
    prompt = players.prompt_for(config.model, config.prompt)
    state = init_state(policy.model, params, learning, jax.random.key(0))
    update = jax.jit(make_update(policy, game, learning))
    ways = {"one program": lambda key: update(state, key)}
    for name, one_by_one in (("host, batched", False), ("host, one by one", True)):
        iterate = host_iteration(HostLoop(policy, game, prompt, one_by_one), learning, config)
        ways[name] = lambda key, iterate=iterate: iterate(state, key)
    seconds = medians({name: [s for s, _ in runs] for name, runs in played(ways, repeats).items()})
    episodes, base = f"{learning.num_groups * learning.group_size} episodes", seconds["host, batched"]
    return [[episodes, name, f"{took:.2f} s/iteration", f"{base / took:.2f}"] for name, took in seconds.items()]


def main() -> None:
    parser = parser_of(__doc__, model="nano", repeats=3, sizes=[8, 32])
    parser.add_argument("--no_one_by_one", action="store_true", help="leave out the slowest way")
    parser.add_argument("--turns", type=int, default=5, help="maximum turns per episode")
    args = parser.parse_args()
    print(f"{machine()}; {args.model}, FrozenLake, medians of {args.repeats}")
    if args.model == "nano":
        config = make(TrainConfig, max_turns=args.turns, **PRESETS["demo"])
        rows = rollouts(config, args.sizes, args.repeats, not args.no_one_by_one) + iterations(config, args.repeats)
    else:
        config = make(TrainConfig, model=args.model, max_tokens=48, group_size=2, group_sample=2, max_turns=args.turns)
        rows = rollouts(config, args.sizes, args.repeats, not args.no_one_by_one)
    print_head("what", "how", "speed", "ratio to host, batched")
    for row in rows:
        print_row(*row)


if __name__ == "__main__":
    main()
