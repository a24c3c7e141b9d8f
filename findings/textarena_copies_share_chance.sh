#!/usr/bin/env bash
# TextArena 0.7.4: what a seeded environment, and a deep copy of one, depend on.
#
# One would guess: after reset(seed=3) an environment's course follows from its moves, and copy.deepcopy(env) can be
# played ahead (a planner's look into the future) without the original noticing.
# What happens: reset seeds Python's global `random`, and later steps draw from that one generator. Playing a copy, or
# only resetting some other game in the process, changes what the original draws next: 2048's board after the same
# three moves is another one. The same holds for every game that draws after its reset (Blackjack's cards, say).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q textarena==0.7.4
cat > "$folder/look.py" <<'PY'
import copy

import textarena


def begin(name="2048-v0-raw", seed=3):
    env = textarena.make(name)
    env.reset(num_players=1, seed=seed)
    return env


def board(env):
    for move in ("[Up]", "[Left]", "[Down]"):
        env.step(move)
    return [list(row) for row in env.state.game_state["board"]]


alone, again = board(begin()), board(begin())
ahead = begin()
copy.deepcopy(ahead).step("[Up]")
after_a_copy = board(ahead)
beside = begin()
begin("GuessTheNumber-v0-raw", 9)
after_another_reset = board(beside)
print("seed 3 and three moves, alone:           ", alone)
print("the same again:                          ", again)
print("a deep copy was played one move ahead:   ", after_a_copy)
print("another game was reset in between:       ", after_another_reset)
raise SystemExit(not (alone == again and alone != after_a_copy and alone != after_another_reset))
PY
"$folder/venv/bin/python" "$folder/look.py"
