#!/usr/bin/env bash
# tensorboardX's SummaryWriter where events can no longer be written (a full disk, a quota; here a limit on file sizes).
#
# One would guess: `add_scalar`, or `flush` at the latest, raises OSError, as writing any other file does.
# What happens: a thread of tensorboardX's own writes the events, and ends with the error; `add_scalar` goes on to return
# as if all were well, and what it was given is lost. The program learns of it only if it looks at its threads.
# Seen with tensorboardX 2.6.5, Python 3.11, Linux.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorboardX==2.6.5 numpy
cat > "$folder/look.py" <<'PY'
import os
import resource
import sys
import threading
import time

from tensorboardX import SummaryWriter

ended = []
threading.excepthook = lambda args: ended.append(args.exc_type.__name__)
writer = SummaryWriter(sys.argv[1], flush_secs=0)
writer.add_scalar("loss", 1.0, 0)
time.sleep(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))  # from here on every write fails
errors = []
for step in range(1, 6):
    try:
        writer.add_scalar("loss", 1.0, step)
    except OSError as error:
        errors.append(error)
    time.sleep(0.3)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))  # to print
print("errors that add_scalar raised:", errors)
print("errors that tensorboardX's thread ended with:", ended)
sys.stdout.flush()
os._exit(0 if ended == ["OSError"] and not errors else 1)
PY
"$folder/venv/bin/python" "$folder/look.py" "$folder/events"
