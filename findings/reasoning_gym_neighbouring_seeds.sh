#!/usr/bin/env bash
# reasoning-gym 0.1.23: two data sets of neighbouring seeds; and what a seed is to GEM 0.1.0, which serves them.
#
# One would guess: create_dataset(name, seed=1, size=500) to train on and seed=2 to test on are two samples, as the
# seeds of other generators are. And GEM's env.reset(seed=7) is always the same task, of as many as there are seeds.
# What happens: item i is drawn by Random(seed + i), so the set of seed 2 is that of seed 1 without its first question
# and with one more at its end: 499 of 500 test questions were trained on (in 100 of the 103 data sets of 0.1.23, by
# `questions of seed 1` and `of seed 2`; a few of each kind are looked at here). Seeds must be `size` apart.
# GEM's environment takes each task from one set of 500 (seed 42), so that 450 seeds show some 300 tasks, and makes a
# new set, of another seed, at its 500th reset: from then on reset(seed=7) is another question.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q reasoning-gym==0.1.23 "nltk>=3.9.1" "math-verify>=0.8" "msgspec>=0.19"
"$folder/venv/bin/pip" install -q --no-deps gem-llm==0.1.0
cat > "$folder/look.py" <<'PY'
import reasoning_gym

as_seen = True
for name in ("letter_counting", "sudoku", "course_schedule", "word_sorting", "simple_geometry"):
    train, test = (
        [item["question"] for item in reasoning_gym.create_dataset(name, seed=seed, size=500)] for seed in (1, 2)
    )
    shared = sum(question in set(train) for question in test)
    is_shifted = train[1:] == test[:-1]
    print(f"{name}: of 500 questions of seed 2 {shared} are among those of seed 1; shifted by one: {is_shifted}")
    as_seen &= shared >= 499 and is_shifted

import gem  # noqa: E402

env = gem.make("rg:letter_counting")
tasks = {env.reset(seed=seed)[0] for seed in range(450)}
env = gem.make("rg:letter_counting")
question = env.reset(seed=7)[0]
until = next(n for n in range(2, 1000) if env.reset(seed=7)[0] != question)
print(f"GEM: seeds 0 to 449 are {len(tasks)} tasks; reset(seed=7) is another task from reset number {until} on")
raise SystemExit(not (as_seen and len(tasks) < 350 and until == 501))
PY
"$folder/venv/bin/python" "$folder/look.py" 2> >(grep -v Warning >&2)
