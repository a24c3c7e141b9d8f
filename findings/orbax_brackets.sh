#!/usr/bin/env bash
# Orbax 0.12.8 on a local disk, Python 3.11.
# One would guess: a checkpoint can be read from the folder it was saved to, whatever the folder is called.
# What happens: with a pair of brackets in the path (runs/lr[0.1]) the save reports success, and the restore of the same
# path says NOT_FOUND, "Metadata at ... .zarray does not exist". Blanks, %, #, ?, *, a colon or one bracket do no harm.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet orbax-checkpoint==0.12.8 jax==0.10.2
cd "$folder"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import pathlib, sys
import numpy as np
import orbax.checkpoint as ocp

seen = {}
for name in ("plain", "a b%#?*:c", "lr[0.1", "lr[0.1]"):
    folder = pathlib.Path(name).absolute()
    folder.mkdir()
    with ocp.CheckpointManager(folder) as manager:
        manager.save(1, args=ocp.args.PyTreeSave({"a": np.arange(4.0)}))
        manager.wait_until_finished()
    try:
        with ocp.CheckpointManager(folder) as manager:
            restored = manager.restore(1, args=ocp.args.PyTreeRestore())
        seen[name] = f"restored {restored['a'].tolist()}"
    except Exception as error:
        seen[name] = f"saved without an error, and not restored: {str(error)[:110]!r}"
    print(f"{name!r}: {seen[name]}")
as_described = [text.startswith("restored") for text in seen.values()] == [True, True, True, False]
sys.exit(not as_described)
PYTHON
