#!/usr/bin/env bash
# skyrl-gym 0.4.0: what gsm8k_multi_turn pays for being late, and which right answers gsm8k and aime call wrong.
#
# One would guess: a policy earns most by answering right at once, and a right number is read with a full stop or in
# bold, as chat models write it.
# What happens: in gsm8k_multi_turn each readable wrong answer earns 0.2 / max_turns and a right one ends the episode,
# so that four wrong answers before the right one earn 1.16 and the right one at once 1.00. gsm8k compares texts and
# reads the first "####" of a reply: "72." and "72.0" are wrong where "72" is right, and so is a reply that corrects
# itself. aime pays -1 for "**Answer:** 72", "Answer: 72." and "\boxed{72}", and 1 for "Answer: \boxed{72}".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q skyrl-gym==0.4.0 2>/dev/null
cat > "$folder/look.py" <<'PY'
import skyrl_gym

TRUTH = {"ground_truth": "72"}


def rewards(game, replies, **extras):
    env = skyrl_gym.make(game, extras={"reward_spec": TRUTH, "reward_model": TRUTH, **extras})
    steps = []
    for reply in replies:
        steps.append(env.step(reply))
        if steps[-1]["done"]:
            break
    return [step["reward"] for step in steps]


print("skyrl-gym 0.4.0; the right answer is 72")
at_once = rewards("gsm8k_multi_turn", ["#### 72"], max_turns=5)
late = rewards("gsm8k_multi_turn", ["#### 1"] * 4 + ["#### 72"], max_turns=5)
print(f"gsm8k_multi_turn: right at once {at_once}, sum {sum(at_once):.2f}; four times wrong first {late}, sum {sum(late):.2f}")
as_seen = sum(at_once) == 1 and abs(sum(late) - 1.16) < 1e-6
seen = {
    "gsm8k": {"#### 72": 1, "#### 72.": 0, "#### 72.0": 0, "#### $72": 0, "#### 24? No, 24 + 48:\n#### 72": 0},
    "aime": {
        "Answer: 72": 1, "Answer: 72.": -1, "**Answer:** 72": -1, "**Answer: 72**": -1,
        "Answer: \\boxed{72}": 1, "\\boxed{72}": -1, "Answer: \\(72\\)": -1,
    },
}
for game, replies in seen.items():
    for reply, expected in replies.items():
        [reward] = rewards(game, [reply])
        print(f"{game}: {reply!r} earns {reward}")
        as_seen &= reward == expected
raise SystemExit(not as_seen)
PY
"$folder/venv/bin/python" "$folder/look.py"
