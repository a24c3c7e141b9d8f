"""What a model knows of BabyAI-Text: imagined observations against the game's, judgements against the rules'.

    python -m benchmarks.imagination                       # the built-in model
    python -m benchmarks.imagination --model smollm2 --episodes 6

Walkers that the model has not read (`envs.babyai.transcripts`) give true histories and true actions. From every third
step the model imagines what the next four of these actions lead to, each line after its own last one. A line is right
if it equals the game's; its sentences are counted apart, and so are those about things that the last line spoke of
(what comes into view nobody can know). Judgements are read after the true reflection up to "This step is":
P(GOOD) / (P(GOOD) + P(BAD)) in tenths against the share of steps that the rules call GOOD among GOOD and BAD.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from absl import flags

from nlrl_jax import envs
from nlrl_jax.algorithms.imagine import PlanningConfig
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.envs.babyai.transcripts import Walker, walk
from nlrl_jax.roles.dialogues import BAD, GOOD, History, Step, before_verdict, verdict
from nlrl_jax.run import app, models
from nlrl_jax.run.host_games.prompts import PromptConfig, dialogue_of
from nlrl_jax.types import Sampling

SEEDS = 1 << 31  # of walkers that no corpus and no task has
DEPTH = 4


def until(history: History, t: int) -> History:
    """The history before action t."""
    return History(history.goal, history.observation, history.steps[:t], history.note)


def names(observation: str) -> list[str]:
    """What an observation speaks of, without places: ["wall", "green key", ...]."""
    return [" ".join(part.split()[3:5]) for part in observation.split(", ")]


def imagined(model, dialogue, transcripts, tokens) -> dict[int, dict[str, float]]:
    """By depth from 1: share of right lines, of right sentences, and of right sentences about things seen before."""
    live = [
        (until(one.history, t), one.history.steps[t : t + DEPTH])
        for one in transcripts
        for t in range(0, len(one.history.steps) - DEPTH, 3)
    ]
    live = [
        (dialogue.trim(history, min((2 * DEPTH + 1) * tokens, dialogue.room // 2)).history, steps)
        for history, steps in live
    ]
    sums: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for depth in range(DEPTH):
        live = [(dialogue.trim(history, 3 * tokens).history, steps) for history, steps in live]
        chats = [dialogue.chat(h, f"Action: {steps[depth].action}\nObservation:") for h, steps in live]
        lines = model.complete(chats, Sampling(tokens, 0.0), "world model", stop=("\n",))
        grown = []
        for (history, steps), reply in zip(live, lines, strict=True):
            true, text = steps[depth].observation, reply.text.strip()
            before = names(history.steps[-1].observation if history.steps else history.observation)
            said, real = set(text.split(", ")), set(true.split(", "))
            known = {part for part in real if names(part)[0] in before}
            row = sums[depth + 1]
            row["lines"].append(text == true)
            row["sentences"].append(len(said & real) / max(len(said | real), 1))
            if known:
                row["known"].append(len(said & known) / len(known))
            note = steps[depth].note  # the true one: judgements are measured apart
            grown.append((history.then(Step(steps[depth].action, text, note)), steps))
        live = grown
    return {depth: {name: float(np.mean(values)) for name, values in row.items()} for depth, row in sums.items()}


def calibration(model, dialogue, transcripts) -> list[tuple[float, float, int]]:
    """(mean predicted share of GOOD, share that is GOOD, number) for each tenth of predictions."""
    chats, labels = [], []
    for one in transcripts:
        for t, step in enumerate(one.history.steps):
            if verdict(step.note) in (GOOD, BAD):
                shown = dialogue.trim(until(one.history, t + 1).noted(""), 64).history
                chats.append(dialogue.chat(shown, f"Critic: {before_verdict(step.note)}"))
                labels.append(verdict(step.note) == GOOD)
    rows = model.score(chats, [(f" {GOOD}", f" {BAD}")] * len(chats), "critic")
    p = np.array([1 / (1 + np.exp(bad.log_prob - good.log_prob)) for good, bad in rows])
    tenth, labels = np.minimum((p * 10).astype(int), 9), np.array(labels)
    right = float(np.mean((p > 0.5) == labels))
    print(f"GOOD or BAD is right after {right:.3f} of {len(labels)} true reflections")
    chosen = [(n, tenth == n) for n in range(10) if (tenth == n).any()]
    return [(float(p[rows].mean()), float(labels[rows].mean()), int(rows.sum())) for _, rows in chosen]


def main(argv: list[str]) -> None:
    del argv
    given = flags.FLAGS
    model = models.local_model(given.model, chat=False, cache_mb=1000.0)
    game = envs.make_host("babyai")
    dialogue = dialogue_of(
        METHODS["lac"], game, PromptConfig(), given.model, model.tokenizer, model.model.config.max_positions
    )
    n = given.episodes
    transcripts = walk("all", [SEEDS + i for i in range(n)], [Walker()] * n, ["Critic"] * n, [20] * n)
    tokens = PlanningConfig().line(dialogue.room)
    for depth, row in imagined(model, dialogue, transcripts, tokens).items():
        print(f"depth {depth}: " + ", ".join(f"{name} {value:.3f}" for name, value in row.items()))
    for predicted, share, number in calibration(model, dialogue, transcripts):
        print(f"predicted {predicted:.2f}: {share:.2f} of {number}")


def define_flags() -> None:
    flags.DEFINE_string("model", "nano_babyai", "a local model, as nlrl-jax run_lac takes it")
    flags.DEFINE_integer("episodes", 60, "episodes to imagine in", lower_bound=1)


if __name__ == "__main__":
    define_flags()
    app.run(main)
