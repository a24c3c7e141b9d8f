#!/usr/bin/env bash
# TextArena 0.7.4: games in which a lost episode pays a sentence.
#
# One would guess: `close()` gives each player a number, and `info["reason"]` the sentence that goes with it; and
# an observation's text is a string.
# What happens in Countdown, Cryptarithm and Slitherlink: `set_invalid_move(reason, reward)` is called with its two
# arguments in the other order. The first invalid move is answered with a number as its reason, and the second one in a
# row ends the game with the sentence as the reward, so that a trainer that sums rewards fails only in episodes that
# end like this. `add_observation` gets a move's fields in the wrong places, too: the player's number is the text, and
# the move is the kind.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q textarena==0.7.4
cat > "$folder/look.py" <<'PY'
import textarena

as_seen = True
for name in ("Countdown-v0", "Cryptarithm-v0", "Slitherlink-v0"):
    env = textarena.make(f"{name}-raw")
    env.reset(num_players=1, seed=1)
    env.step("no move")
    _, observations = env.get_observation()
    done, _ = env.step("no move")
    rewards, info = env.close()
    texts = {type(text).__name__ for _, text, _ in observations}
    kinds = {type(kind).__name__ for _, _, kind in observations}
    print(f"{name}: ended {done}, reward {rewards[0]!r}, reason {info[0]['reason']!r}; texts {texts}, kinds {kinds}")
    as_seen &= done and isinstance(rewards[0], str) and "int" in texts and "str" in kinds
raise SystemExit(not as_seen)
PY
"$folder/venv/bin/python" "$folder/look.py" 2>/dev/null
