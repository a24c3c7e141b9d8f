"""FrozenLake through a language model: one program, against ordinary Python loops over the same model.

    python -m benchmarks.text_games                     # the nano model
    python -m benchmarks.text_games --model smollm2

Three ways to play the same episodes with the same weights, sampling and prompts:
- "one program": `text_games.play` under jit; text, parsing and game on the device, the prefix computed once;
- "host, batched": strings, `tokenizer.encode`, parsing and game steps in Python; all chats of a turn in one call;
- "host, one by one": the same with one chat a call.
The host loops call the same jitted `generate` on whole prompts, padded to a bucket. Ways take turns within a repeat;
cells are medians.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import in_turns, machine, medians, parser_of, print_head, print_row, timed
from nlrl_jax.config import make
from nlrl_jax.launch.train_ms_grpo import PRESETS, TrainConfig, build
from nlrl_jax.lm.generate import generate
from nlrl_jax.rollouts import text_games
from nlrl_jax.run import players
from nlrl_jax.text.parser import ReplyFormat, reference_parse
from nlrl_jax.text.policy import LanguageAgentPolicy
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
            functools.partial(generate, policy.model, sampling=policy.sampling, eos_ids=policy.eos_ids)
        )
        self.fields = jax.jit(game.fields)
        self.step = jax.jit(game.env.step_env)

    def complete(self, variables, prompts: list[list[int]], key) -> list[list[int]]:
        """The ids of a reply to each prompt."""
        tokens = np.zeros((len(prompts), self.bucket), np.int32)
        for row, ids in zip(tokens, prompts):
            row[self.bucket - len(ids) :] = ids
        lengths = jnp.array([len(ids) for ids in prompts])
        out = jax.device_get(self.sample(variables, jnp.asarray(tokens), lengths, key))
        return [list(tokens[:n]) for tokens, n in zip(out.tokens, out.lengths)]

    def play(self, variables, key, states: list[Any], max_turns: int, max_steps: int) -> int:
        """How many turns the episodes that begin in these states have."""
        episodes, turns = [{"state": s, "return": 0.0, "over": False, "steps": 0} for s in states], 0
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
                replies = [self.complete(variables, [p], k)[0] for p, k in zip(prompts, keys)]
            else:  # padded to the number of episodes, so that one program serves every turn
                padded = prompts + prompts[:1] * (len(episodes) - len(prompts))
                replies = self.complete(variables, padded, keys[0])[: len(active)]
            for e, reply, k in zip(active, replies, keys):
                text = self.policy.tokenizer.decode(reply).encode()
                parsed = reference_parse(text, len(reply), self.format)
                reward = -0.5 * parsed.num_invalid + float(parsed.format_penalty)
                for i, action in enumerate(parsed.actions):
                    if action >= 0 and not e["over"] and e["steps"] < max_steps:
                        key_step = jax.random.fold_in(k, i)
                        _, e["state"], r, terminated, _ = self.step(key_step, e["state"], action, self.game.params)
                        reward += float(r)
                        e["over"], e["steps"] = bool(terminated), e["steps"] + 1
                e["return"] += reward
                turns += 1
        return turns


def rollouts(config: TrainConfig, size: int, repeats: int, one_by_one: bool) -> dict[str, float]:
    """Turns a second of each way to play `size` episodes."""
    game, _, policy, params = build(config)
    prompt = players.prompt_for(config.model, config.prompt)
    variables, limits = {"params": params}, (config.learning.max_turns, config.learning.max_steps)
    states = text_games.reset(game, jax.random.key(size), size)
    listed = [jax.tree.map(lambda x: x[i], states) for i in range(size)]
    device = jax.jit(lambda v, key, states: text_games.play(policy, game, v, key, states, *limits).turns.active)
    loops = {"host, batched": HostLoop(policy, game, prompt, one_by_one=False)}
    if one_by_one:
        loops["host, one by one"] = HostLoop(policy, game, prompt, one_by_one=True)

    def rate(name: str, seed: int) -> float:
        key = jax.random.key(seed)
        if name == "one program":
            seconds, active = timed(device, variables, key, states)
            return int(active.sum()) / seconds
        seconds, turns = timed(loops[name].play, variables, key, listed, *limits)
        return turns / seconds

    subjects = {name: functools.partial(rate, name) for name in (*loops, "one program")}
    runs = in_turns(subjects, 1 + repeats)  # the first compiles
    return medians({name: rates[1:] for name, rates in runs.items()})


def main() -> None:
    parser = parser_of(__doc__, model="nano", repeats=3, sizes=[8, 32])
    parser.add_argument("--no_one_by_one", action="store_true", help="leave out the slowest way")
    parser.add_argument("--turns", type=int, default=5, help="maximum turns per episode")
    args = parser.parse_args()
    print(f"{machine()}; {args.model}, FrozenLake, medians of {args.repeats}")
    small = {"model": args.model, "max_tokens": 48, "group_size": 2, "group_sample": 2}
    config = make(TrainConfig, max_turns=args.turns, **(PRESETS["demo"] if args.model == "nano" else small))
    print_head("episodes", "how", "turns/s", "ratio to host, batched")
    for size in args.sizes:
        speeds = rollouts(config, size, args.repeats, not args.no_one_by_one)
        for name, speed in speeds.items():
            print_row(size, name, f"{speed:.2f}", f"{speed / speeds['host, batched']:.2f}")


if __name__ == "__main__":
    main()
