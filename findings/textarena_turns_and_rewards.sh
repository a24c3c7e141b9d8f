#!/usr/bin/env bash
# TextArena 0.7.4, GuessTheNumber: the limit of turns, and what a lost game pays.
#
# One would guess: with "10 turns" in the prompt (max_turns=10) the tenth wrong guess ends the game; and a game that
# ends because of invalid moves pays less than one that goes on, 0 or -1 as the default of `set_invalid_move` says.
# What happens: the limit is looked at before a turn is counted, so an eleventh guess is taken, and wins with reward 1.
# And two invalid moves in a row end the game with the share of the way that the last guess had come: after a guess one
# beside the number, writing nonsense twice pays 0.947, which an agent trained on rewards can learn to prefer.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q textarena==0.7.4
cat > "$folder/look.py" <<'PY'
import textarena

env = textarena.make("GuessTheNumber-v0-raw")
env.reset(num_players=1, seed=3)
number, limit = env.state.game_state["game_number"], env.max_turns
wrong = [guess for guess in range(1, 21) if guess != number]
ended = [env.step(f"[{guess}]")[0] for guess in wrong[:limit]]
last, _ = env.step(f"[{number}]")
late = env.close()[0]
print(f"max_turns {limit}: ended after {limit} wrong guesses: {any(ended)}")
print(f"guess {limit + 1} ends it: {last}, and pays {late}")

env.reset(num_players=1, seed=3)
for action in (f"[{number + 1}]", "nonsense", "nonsense"):
    done, _ = env.step(action)
rewards, info = env.close()
print(f"a near guess, then two invalid moves: {rewards}, {info[0]['reason']}")
late_win, paid = not any(ended) and last and late == {0: 1}, rewards[0] > 0.9 and info[0]["invalid_move"]
raise SystemExit(not (late_win and done and paid))
PY
"$folder/venv/bin/python" "$folder/look.py"
