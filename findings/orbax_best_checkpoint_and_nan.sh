#!/usr/bin/env bash
# orbax-checkpoint 0.12.8, CheckpointManager that keeps the best by a metric (`best_fn`, `max_to_keep`).
#
# One would guess: an evaluation that came out as NaN (no episode ended, a diverged run) counts as the worst, or raises.
# What happens: it is kept or dropped by its place, and so are its neighbours. With 0.1, 0.9, NaN, 0.2, 0.3 and two
# checkpoints to keep, Orbax deletes 0.9 without a word, keeps 0.2 and 0.3 and calls 0.3 the best; with the NaN in the
# second place it keeps 0.9. The steps are sorted by their metrics, and Python's sort with a NaN among them is no order.
# The newer way to say the same, `preservation_policy=BestN`, deletes the same. What helps is a `best_fn` that returns
# -inf for NaN (+inf with `best_mode="min"`).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q orbax-checkpoint==0.12.8 jax==0.10.2 2>/dev/null
cat > "$folder/look.py" <<'PY'
import math
import sys
import tempfile

import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

KEPT = 2


def success(metrics):
    return metrics["success"]


def never_nan(metrics):
    return -math.inf if math.isnan(success(metrics)) else success(metrics)


def options(kind):
    if kind == "BestN":
        policy = checkpoint_managers.BestN(get_metric_fn=success, n=KEPT)
        return ocp.CheckpointManagerOptions(preservation_policy=policy, best_fn=success)
    best_fn = never_nan if kind == "NaN is -inf" else success
    return ocp.CheckpointManagerOptions(max_to_keep=KEPT, best_fn=best_fn)


def kept(successes, kind):
    with ocp.CheckpointManager(tempfile.mkdtemp(dir=sys.argv[1]), options=options(kind)) as manager:
        for step, value in enumerate(successes):
            manager.save(step, args=ocp.args.StandardSave({"w": np.ones(2)}), metrics={"success": value})
            manager.wait_until_finished()
        return [successes[step] for step in manager.all_steps()]


courses = {"no NaN": [0.1, 0.9, 0.2, 0.3], "third": [0.1, 0.9, math.nan, 0.2, 0.3], "second": [0.1, math.nan, 0.9, 0.2, 0.3]}
found = {}
for course, successes in courses.items():
    for kind in ("best_fn", "BestN", "NaN is -inf"):
        found[course, kind] = kept(successes, kind)
        print(f"{successes} by {kind}: kept {found[course, kind]}")
lost = all(0.9 not in found["third", kind] for kind in ("best_fn", "BestN"))
right = all(0.9 in found[course, kind] for course, kind in found if course != "third" or kind == "NaN is -inf")
raise SystemExit(not (lost and right))
PY
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/look.py" "$folder" 2>/dev/null
