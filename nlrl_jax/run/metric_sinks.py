"""Where a run's metrics are shown: TensorBoard, metrics.csv and Weights & Biases.

None is read again: each is brought up to date from metrics.jsonl when a run continues.
"""

from __future__ import annotations

import csv
import io
import os
import pathlib
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from nlrl_jax.files import read_json, write_atomically, write_json
from nlrl_jax.run import directory

TENSORBOARD = "tensorboard"
FLUSH_SECONDS = 10.0  # between writes of the events to the disk
CSV = "metrics.csv"
WANDB = "wandb.json"  # in a run's folder: {"project": ..., "id": ...}
_UNKNOWN_TO_TENSORBOARD = re.compile(r"[^-/\w.]")
_UNKNOWN_TO_WANDB = re.compile(r"[/\\#?%:]")

Row = Mapping[str, float]  # with an int "iteration"


class MetricSink(Protocol):
    """Receives the metrics of one iteration after another."""

    def add(self, row: Row) -> None:
        """Shows an iteration."""

    def close(self) -> None:
        """Flushes and closes whatever is open."""


class TensorBoardSink:
    """Writes event files to RUN_DIR/tensorboard, from the start.

    Not by tensorboardX's `SummaryWriter`: its thread dies silently when the disk is full, and later events then wait
    for ever.
    """

    def __init__(self, run_dir: pathlib.Path):
        from tensorboardX.event_file_writer import EventsWriter

        folder = run_dir / TENSORBOARD
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        self._writer, self._flushed = EventsWriter(str(folder / "events")), 0.0

    def add(self, row: Row) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        for name, value in row.items():
            if name != "iteration":
                summary = scalar(_UNKNOWN_TO_TENSORBOARD.sub("_", name), value)
                self._writer.write_event(Event(summary=summary, step=row["iteration"], wall_time=time.time()))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        self._writer.close()


class CsvSink:
    """Writes RUN_DIR/metrics.csv from the start: one line per iteration, empty where a metric was not written.

    A metric that appears later adds a column, for which the file is written once more.
    """

    def __init__(self, run_dir: pathlib.Path, rows: Sequence[Row]):
        self._path = run_dir / CSV
        self._columns = list(dict.fromkeys(["iteration", *(name for row in rows for name in row)]))
        self._rewrite(rows)

    def _rewrite(self, rows: Sequence[Mapping[str, object]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self._path, text.getvalue())
        self._file = open(self._path, "a", encoding="utf-8", newline="")  # noqa: SIM115
        self._writer = csv.DictWriter(self._file, self._columns, lineterminator="\n")

    def add(self, row: Row) -> None:
        new = [name for name in row if name not in self._columns]
        if new:
            self._file.close()
            with open(self._path, encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            self._columns += new
            self._rewrite(rows)
        self._writer.writerow(row)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class WandbSink:
    """A run of Weights & Biases. Its id is stored in the run's folder, so a resumed run continues it.

    Iterations that it already has are not sent again: a resumed run repeats them to the bit.
    """

    def __init__(self, root: pathlib.Path, run_dir: pathlib.Path):
        """Args:
        root: the whole run's folder, which holds wandb.json.
        run_dir: that folder, or a part's in it.
        """
        import wandb

        stored = read_json(root / WANDB)
        name = pathlib.PurePath(root.name, run_dir.relative_to(root)).as_posix()
        self._run = wandb.init(
            project=stored["project"], id=re.sub(r"\W", "-", f"{stored['id']}/{name}"), name=name, group=root.name,
            config=directory.read_config(root), dir=str(run_dir), resume="allow", reinit="create_new",
        )  # fmt: skip
        self._next = self._run.step

    def add(self, row: Row) -> None:
        if row["iteration"] >= self._next:
            metrics = {name: value for name, value in row.items() if name != "iteration"}
            self._run.log(metrics, step=row["iteration"])

    def close(self) -> None:
        self._run.finish()


def check_wandb(project: str) -> None:
    """Checks before work starts that metrics can go to a project, and asks for a key where one is missing.

    Raises:
      ModuleNotFoundError: the package wandb is not installed.
      ValueError: no project name, or no login.
    """
    if _UNKNOWN_TO_WANDB.search(project) or len(project) > 128:
        raise ValueError(
            f"--wandb is {project!r}; a project's name has at most 128 characters and none of / \\ # ? % :"
        )
    import wandb

    if os.environ.get("WANDB_MODE", "online") == "online":
        try:
            wandb.login()
        except wandb.Error as error:
            raise ValueError(
                f"--wandb needs an account ({error}): run `wandb login`, or set WANDB_MODE=offline"
            ) from None


def use_wandb(run_dir: pathlib.Path, project: str) -> None:
    """Metrics of this run, and of its parts, go to a project from now on, also after --resume."""
    path = run_dir / WANDB
    number = read_json(path)["id"] if path.exists() else secrets.token_hex(4)
    write_json(path, {"project": project, "id": number})


def sinks_of(run_dir: pathlib.Path, rows: Sequence[Row]) -> list[MetricSink]:
    """The sinks of a run or of a part of one, which have received the rows written so far."""
    sinks: list[MetricSink] = [TensorBoardSink(run_dir)]
    run_dir = run_dir.absolute()
    root = next((path for path in (run_dir, *run_dir.parents) if directory.holds_run(path)), run_dir)
    if (root / WANDB).is_file():
        sinks.append(WandbSink(root, run_dir))
    for row in rows:
        for sink in sinks:
            sink.add(row)
    return [*sinks, CsvSink(run_dir, rows)]
