#!/usr/bin/env bash
# reasoning-gym 0.1.23: what score_answer pays for wrong answers, for none, and for its own.
#
# One would guess: a wrong number earns 0, as does no answer at all, and entry["answer"], which one would fine-tune
# on, earns 1.
# What happens: where a data set has no rule of its own, an answer that contains the right one as a piece of text earns
# the share of its length. Where 4 is right, 14 and 40 earn 0.5 and 5 earns 0; where 292 is right, 1292 earns 0.75. So
# a question "how many" pays a policy for writing more digits. In three data sets no answer (None) earns 0.01.
# In five, whose questions have many solutions, entry["answer"] is None, which a demonstration would spell "None".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q reasoning-gym==0.1.23
cat > "$folder/look.py" <<'PY'
import reasoning_gym

as_seen = True
for name in ("letter_counting", "leg_counting", "basic_arithmetic", "gcd"):
    data = reasoning_gym.create_dataset(name, seed=1, size=100)
    wrong = [data.score_answer("1" + item["answer"].lstrip("-"), item) for item in data]
    other = [data.score_answer(str(int(item["answer"]) + 1), item) for item in data]
    print(f"{name}: a digit put before the right number earns {min(wrong):.2f} to {max(wrong):.2f} "
          f"({sum(wrong) / 100:.2f} on average), one more than it {sum(other) / 100:.2f}")
    as_seen &= sum(wrong) / 100 > 0.3 and sum(other) / 100 < 0.05
for name in ("countdown", "puzzle24", "fraction_simplification"):
    data = reasoning_gym.create_dataset(name, seed=1, size=20)
    paid = {data.score_answer(None, item) for item in data}
    print(f"{name}: None earns {paid}")
    as_seen &= paid == {0.01}
for name in ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"):
    data = reasoning_gym.create_dataset(name, seed=1, size=20)
    kinds = {type(item["answer"]).__name__ for item in data}
    paid = {data.score_answer(item["answer"], item) for item in data}
    print(f"{name}: the entry's own answer ({', '.join(kinds)}) earns {paid}")
    as_seen &= max(paid) == 0
raise SystemExit(not as_seen)
PY
"$folder/venv/bin/python" "$folder/look.py" 2>/dev/null
