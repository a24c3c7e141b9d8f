#!/usr/bin/env bash
# Gymnasium 1.3.0: FrozenLake-v1 with a random map (desc=None, map_name=None), and reset(seed=3).
#
# One would guess: reset(seed=3) decides everything random about an episode, as its documentation says, so that two
# environments that are reset with one seed are the same lake, and other seeds are other lakes.
# What happens: the map is drawn once, when the environment is made, from a generator that no seed reaches. Two
# environments with one seed have two maps, all seeds of one environment the same map. Tasks for training and for
# evaluation that differ in their seeds are one task, and no run can be repeated.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q gymnasium==1.3.0
cat > "$folder/look.py" <<'PY'
import gymnasium


def lake(env, seed):
    env.reset(seed=seed)
    return " ".join(b"".join(row).decode() for row in env.unwrapped.desc)


one, other = (gymnasium.make("FrozenLake-v1", desc=None, map_name=None) for _ in range(2))
maps = [lake(one, 3), lake(one, 4), lake(other, 3)]
print("an environment, seed 3:    ", maps[0])
print("the same one, seed 4:      ", maps[1])
print("another environment, seed 3:", maps[2])
raise SystemExit(not maps[0] == maps[1] != maps[2])
PY
"$folder/venv/bin/python" "$folder/look.py"
