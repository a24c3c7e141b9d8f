"""The training loop that every script shares: metrics, progress, checkpoints and clean shutdown."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.config import check_seed
from nlrl_jax.files import read_json, write_json
from nlrl_jax.run import alarms, processes, results
from nlrl_jax.run.directory import check_done, part_of
from nlrl_jax.run.metrics import METRICS, MetricsWriter, read_rows
from nlrl_jax.run.progress import Progress
from nlrl_jax.types import MOST_REWARD
from nlrl_jax.weights.checkpoint import Checkpoints


class TrainingState(Protocol):
    """A training state: a frozen dataclass of arrays with a counter `iteration`."""

    iteration: jax.Array

    def learned(self) -> dict[str, Any]:
        """The fields that a checkpoint stores."""

    def replace(self, **fields: Any) -> Any:
        """The state with other fields."""


REDRAWN = "redrawn.json"  # {iteration: how often its update was not finite}


def restore(run_dir: pathlib.Path, state: Any) -> Any:
    """The state of the run's last good checkpoint, or `state` itself where there is no checkpoint yet.

    Raises:
      ValueError: there are checkpoints, but none that is complete, fits the state and belongs to this run.
    """
    try:
        step, learned, _ = Checkpoints(run_dir / "checkpoints").restore(state.learned(), of_run=part_of(run_dir))
    except FileNotFoundError:
        return state
    print(f"resuming at iteration {step} ({run_dir})", flush=True)
    return state.replace(**learned)


def seed_dirs(run_dir: pathlib.Path, seeds: Sequence[int]) -> list[pathlib.Path]:
    """The folder of each seed's metrics in a run with a stack of seeds."""
    return [run_dir / f"seed_{seed}" for seed in seeds]


class Schedule(NamedTuple):
    """How a loop runs.

    Attributes:
      seed: one, or those of a stack of states (`updates.stack`): `update` then gets keys [n] and returns metrics [n],
        and each seed's metrics go to a folder of its own (`seed_dirs`).
      iterations: of the whole run. checkpoint_every, eval_every: iterations between checkpoints, and between the
        evaluations of `learn`.
      columns: the metrics that progress shows.
      resume: keep the metrics written before `state.iteration`.
      game: its name, for messages.
      rate: the learning rate's option, which --resume may lower; "" where it may not.
    """

    seed: int | Sequence[int]
    iterations: int
    checkpoint_every: int
    columns: Sequence[str] = ()
    resume: bool = False
    eval_every: int = 1
    game: str = ""
    rate: str = "--learning_rate"


def train(
    run_dir: pathlib.Path,
    update: Callable[[Any, jax.Array], tuple[Any, dict[str, jax.Array]]],
    state: Any,
    plan: Schedule,
    evaluate: Callable[[int, Any], dict[str, Any]] | None = None,
    finish: Callable[[Any], None] | None = None,
) -> Any:
    """Calls `state, metrics = update(state, key)` from `state.iteration` up to `plan.iterations`.

    The key of iteration i is `fold_in(key(seed), i + 1)`, so a resumed run computes the same bits; where its update was
    not finite n times, `fold_in(fold_in(key(seed), i + 1), n)`, so that the resumed run can go on. SIGTERM and Ctrl-C
    let the running iteration finish, save, and end the process with status 0; Ctrl-C calls `finish` first, so that the
    report of what is done is written. A second signal ends the process at once.

    Args:
      run_dir: the run's folder, taken by `open_run`.
      update: may donate `state`. A metric "finite" that is 0 stops the run; the update should then have left the state
        and its counter as they were (`updates.keep_finite`).
      evaluate: (iterations done, state) -> more metrics, possibly none.
      finish: writes results and pages; gets the last state, once it is saved.

    Returns:
      The state after the last iteration, saved.

    Raises:
      ValueError: a loss that is not finite; the last good state is saved where the update kept it. Or, before the first
        iteration: more iterations done than planned, no room for a checkpoint, or, on resume, missing lines of metrics.
        Or most episodes of some iterations broke off (`alarms.Watch.reason_to_stop`); what is done is saved.
      SystemExit: a signal asked for the end, even in the last iteration; everything is saved.
    """
    start, iterations, seed = _done(state), plan.iterations, plan.seed
    done = start
    folders = [run_dir] if isinstance(seed, int) else seed_dirs(run_dir, seed)
    key = (
        jax.random.key(check_seed(seed))
        if isinstance(seed, int)
        else jax.vmap(jax.random.key)(jnp.asarray([check_seed(number) for number in seed], jnp.uint32))
    )
    fold_in = jax.random.fold_in if isinstance(seed, int) else jax.vmap(jax.random.fold_in, in_axes=(0, None))
    check_done(run_dir, iterations)
    _check_disk(run_dir, state)
    origin = {"run": part_of(run_dir)}
    redrawn = processes.from_first(lambda: _redrawn(run_dir)) if plan.resume else {}
    for folder in folders if plan.resume else ():
        _check_metrics(folder, run_dir, start)
    with stop_signals() as signals:
        with contextlib.ExitStack() as stack:
            written_here = folders if processes.first() else ()
            writers = [stack.enter_context(_writer(folder, start if plan.resume else None)) for folder in written_here]
            checkpoints = stack.enter_context(contextlib.closing(Checkpoints(run_dir / "checkpoints")))
            progress = stack.enter_context(Progress(iterations, start, plan.columns))
            watch = alarms.Watch()
            for i in range(start, iterations):
                clock = time.monotonic()
                own_key, times = fold_in(key, i + 1), redrawn.get(str(i), 0)
                state, metrics = update(state, fold_in(own_key, times) if times else own_key)
                metrics = {name: np.asarray(value, np.float64) for name, value in metrics.items()}
                bad_turn = int(np.max(metrics.pop("bad_reward_turn", 0)))
                if not metrics.pop("finite", np.ones(())).all():
                    if (np.ravel(state.iteration) == i).all():  # the update kept the last good state
                        checkpoints.save(i, state.learned(), origin | {"stopped": "non-finite"})
                    if processes.first():
                        write_json(run_dir / REDRAWN, {**redrawn, str(i): times + 1})
                    raise ValueError(_not_finite(i, metrics, checkpoints, _advice(plan, bad_turn)))
                metrics |= evaluate(i + 1, state) if evaluate else {}
                _write(writers, i, metrics, time.monotonic() - clock)
                means = {name: np.mean(value) for name, value in metrics.items()}
                progress.update(i, means)
                for sentence in watch(means):
                    progress.note(f"warning: {sentence}.")
                done = i + 1
                # All processes stop after the same iteration: a signal that arrives meanwhile counts for the next.
                stopped = processes.any_of(bool(signals))
                if done % plan.checkpoint_every == 0 or done == iterations or stopped:
                    checkpoints.save(done, state.learned(), origin)
                if reason := watch.reason_to_stop():
                    checkpoints.save(done, state.learned(), origin)
                    raise ValueError(f"stopped after iteration {done} of {iterations}, which is saved: {reason}")
                if stopped:
                    break
        arrived = [name for names in processes.every(signals) for name in names]
        if arrived:
            print(f"{arrived[0]}: saved after iteration {done} of {iterations}; continue with --resume", flush=True)
        if finish is not None and "SIGTERM" not in arrived:
            finish(state)
        arrived = arrived or processes.any_of(bool(signals))  # one that arrived during `finish`
    if arrived:
        sys.exit(0)
    return state


def learn(
    run_dir: pathlib.Path,
    script: str,
    update: Callable[[Any, jax.Array], tuple[Any, dict[str, Any]]],
    state: Any,
    plan: Schedule,
    evaluate: Callable[[Any], dict[str, float]],
    finish: Callable[[Any], Any] | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """`train` with the same evaluation before training, every `plan.eval_every` iterations and at the end.

    Args:
      finish: gets the last state, once results.json is written.
      facts: more entries of results.json.

    Returns:
      The content of results.json, with the "iterations" done.
    """
    if plan.resume and (run_dir / results.RESULTS).is_file():
        before = results.read(run_dir)["before"]
    else:
        before = evaluate(state)
        results.write(run_dir, script=script, before=before, after={}, iterations=0, **facts)
    state = restore(run_dir, state) if plan.resume else state
    latest: dict[int, dict[str, float]] = {}  # iterations done -> the last evaluation

    def evaluate_once(state: Any) -> dict[str, float]:
        done = _done(state)
        if done not in latest:
            evaluation = evaluate(state)
            latest.clear()
            latest[done] = evaluation
        return latest[done]

    def write_results(state: Any) -> None:
        after = evaluate_once(state)
        results.write(run_dir, script=script, before=before, after=after, iterations=_done(state), **facts)
        if finish:
            finish(state)

    def evaluate_if_due(done: int, state: Any) -> dict[str, float]:
        due = done % plan.eval_every == 0 or done == plan.iterations
        return {f"eval/{name}": value for name, value in evaluate_once(state).items()} if due else {}

    train(run_dir, update, state, plan, evaluate_if_due, write_results)
    return results.read(run_dir)


def _done(state: TrainingState) -> int:
    """How many iterations a state has done, or a stack of states that learn together."""
    return int(np.ravel(state.iteration)[0])


def _write(writers: Sequence[MetricsWriter], i: int, metrics: dict[str, np.ndarray], seconds: float) -> None:
    """Writes each seed's metrics of an iteration to its own file."""
    for n, writer in enumerate(writers):
        row = {name: np.ravel(value)[min(n, np.size(value) - 1)] for name, value in metrics.items()}
        writer.write(i, row, seconds)


def _writer(folder: pathlib.Path, resume_from: int | None) -> MetricsWriter:
    folder.mkdir(parents=True, exist_ok=True)
    return MetricsWriter(folder, resume_from)


def _check_disk(run_dir: pathlib.Path, state: Any) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state.learned()))
    free = shutil.disk_usage(run_dir).free
    if free < needed:
        raise ValueError(
            f"a checkpoint takes {needed / 1e6:.1f} MB, but the disk of {run_dir} has {free / 1e6:.1f} MB left"
        )


def _check_metrics(folder: pathlib.Path, run_dir: pathlib.Path, start: int) -> None:
    count = sum(row["iteration"] < start for row in read_rows(folder))
    if count < start:
        raise ValueError(
            f"{folder / METRICS} holds {count} of the {start} iterations that checkpoint "
            f"{run_dir / 'checkpoints' / str(start)} has done: lines were lost, or the file is another run's. "
            "Delete that checkpoint to continue from the one before it, or start again with --overwrite"
        )


def _redrawn(run_dir: pathlib.Path) -> dict[str, int]:
    return read_json(run_dir / REDRAWN) if (run_dir / REDRAWN).is_file() else {}


def _not_finite(iteration: int, metrics: dict[str, np.ndarray], checkpoints: Checkpoints, advice: str) -> str:
    bad = ", ".join(f"{name} {value}" for name, value in metrics.items() if not np.isfinite(value).all())
    checkpoints.wait()
    latest = checkpoints.latest_step()
    place = "no state was saved" if latest is None else f"the last good state is in {checkpoints.folder / str(latest)}"
    return f"iteration {iteration} is not finite ({bad or 'in its gradients'}). Stopped; {place}. {advice}"


def _advice(plan: Schedule, bad_turn: int) -> str:
    """What to do where an update was not finite."""
    if bad_turn:
        paid = (
            f"{plan.game or 'The game'} paid a reward in turn {bad_turn} that is not finite, or beyond {MOST_REWARD:g}"
        )
        return f"{paid}: mend its step_env"
    lower = f" and a lower {plan.rate}" if plan.rate else ""
    return f"Continue with --resume{lower}; what is random is drawn anew"


@contextlib.contextmanager
def stop_signals() -> Iterator[list[str]]:
    """A list that names SIGTERM or SIGINT once it has arrived. A second signal ends the process at once.

    Python runs a signal handler only between two bytecodes, and a program on the device may take minutes; two signals
    in that time look like one. So a thread counts them as the operating system delivers them.
    """
    signals: list[str] = []
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield signals
        return

    def note(number, frame):
        if not signals:
            signals.append(signal.Signals(number).name)
            print("\nfinishing this iteration, then saving; again to stop now", file=sys.stderr, flush=True)

    receive, send = socket.socketpair()
    send.setblocking(False)
    counter = threading.Thread(target=_end_at_second, args=(receive,), daemon=True)
    old = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    before = signal.set_wakeup_fd(send.fileno(), warn_on_full_buffer=False)
    counter.start()
    try:
        yield signals
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in old.items():
            signal.signal(number, handler)
        send.close()
        counter.join()
        receive.close()


def _end_at_second(numbers: socket.socket) -> None:
    """Ends the process at the second SIGTERM or SIGINT whose number arrives; returns when the other end is closed."""
    count = 0
    while number := numbers.recv(1):
        count += number[0] in (signal.SIGTERM, signal.SIGINT)
        if count == 2:
            print("stopped; --resume continues from the last checkpoint", file=sys.stderr, flush=True)
            os._exit(128 + number[0])
