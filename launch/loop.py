"""The training loop that every script shares: metrics, progress, checkpoints, and an end without loss."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.run.metrics import MetricsWriter
from nlrl_jax.run.progress import Progress
from nlrl_jax.weights.checkpoint import Checkpoints


class State(Protocol):
    """What a loop needs of a training state, a frozen dataclass of arrays with a counter `iteration`."""

    iteration: jax.Array

    def learned(self) -> dict[str, Any]:
        """The fields that a checkpoint holds."""

    def replace(self, **fields: Any) -> Any:
        """The state with other fields."""


def restore(run_dir: pathlib.Path, state: Any) -> Any:
    """The state of the run's last good checkpoint; `state` itself where there is none yet."""
    checkpoints = Checkpoints(run_dir / "checkpoints")
    if checkpoints.latest_step() is None:
        return state
    _, learned, _ = checkpoints.restore(state.learned())
    return state.replace(**learned)


def seed_dirs(run_dir: pathlib.Path, seeds: Sequence[int]) -> list[pathlib.Path]:
    """Where each seed of a stack leaves its metrics."""
    return [run_dir / f"seed_{seed}" for seed in seeds]


def train(
    run_dir: pathlib.Path,
    update: Callable[[Any, jax.Array], tuple[Any, dict[str, jax.Array]]],
    state: Any,
    *,
    seed: int | Sequence[int],
    iterations: int,
    checkpoint_every: int,
    columns: Sequence[str],
    resume: bool,
    evaluate: Callable[[int, Any], dict[str, Any]] | None = None,
) -> Any:
    """Calls `state, metrics = update(state, key)` until `iterations`, from `state.iteration` on.

    The key of iteration i is `fold_in(key(seed), i + 1)`, so a resumed run computes the same bits. SIGTERM and
    Ctrl-C let the running iteration finish, save, and end the process with status 0; a second one ends it at once.

    Args:
      run_dir: the run's folder, taken by `open_run`.
      update: may donate `state`. "finite" 0 stops the run; the state is then the last good one.
      seed: one, or those of a stack of states (`algorithms.seeds`): `update` then gets keys [n] and gives metrics [n],
        and each seed's metrics go to a folder of its own (`seed_dirs`).
      columns: the metrics that progress shows.
      resume: keep the metrics before `state.iteration`.
      evaluate: (iterations done, state) -> more metrics, possibly none.

    Returns:
      The state after the last iteration, saved.

    Raises:
      ValueError: a non-finite loss; the last good state is saved.
      SystemExit: a signal asked for the end; everything is saved.
    """
    start = int(jnp.ravel(state.iteration)[0])
    folders = [run_dir] if isinstance(seed, int) else seed_dirs(run_dir, seed)
    key = jax.random.key(seed) if isinstance(seed, int) else jax.vmap(jax.random.key)(jnp.asarray(seed))
    fold_in = jax.random.fold_in if isinstance(seed, int) else jax.vmap(jax.random.fold_in, in_axes=(0, None))
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(_writer(folder, start if resume else None)) for folder in folders]
        checkpoints = stack.enter_context(contextlib.closing(Checkpoints(run_dir / "checkpoints")))
        asked = stack.enter_context(asked_to_stop())
        progress = stack.enter_context(Progress(iterations, start, columns))
        for i in range(start, iterations):
            clock = time.monotonic()
            state, metrics = update(state, fold_in(key, i + 1))
            metrics = {name: np.asarray(value, np.float64) for name, value in metrics.items()}
            if not metrics.pop("finite", np.ones(())).all():
                checkpoints.save(i, state.learned(), {"stopped": "non-finite"})
                raise ValueError(_not_finite(i, metrics, run_dir))
            metrics |= evaluate(i + 1, state) if evaluate else {}
            seconds = time.monotonic() - clock
            for n, writer in enumerate(writers):
                writer.write(
                    i, {name: np.ravel(value)[min(n, np.size(value) - 1)] for name, value in metrics.items()}, seconds
                )
            progress.update(i, {name: np.mean(value) for name, value in metrics.items()})
            if (i + 1) % checkpoint_every == 0 or i + 1 == iterations or asked:
                checkpoints.save(i + 1, state.learned())
            if asked and i + 1 < iterations:
                break
        else:
            return state
    print(f"{asked[0]}: saved after iteration {i + 1} of {iterations}; go on with --resume", flush=True)
    sys.exit(0)


def _writer(folder: pathlib.Path, resume_from: int | None) -> MetricsWriter:
    folder.mkdir(parents=True, exist_ok=True)
    return MetricsWriter(folder, resume_from)


def _not_finite(iteration: int, metrics: dict[str, np.ndarray], run_dir: pathlib.Path) -> str:
    seen = ", ".join(f"{name} {value}" for name, value in metrics.items() if not np.isfinite(value).all())
    return (
        f"iteration {iteration} is not finite ({seen or 'in its gradients'}). Stopped; the last good state is in "
        f"{run_dir / 'checkpoints'}. Lower --learning_rate"
    )


@contextlib.contextmanager
def asked_to_stop() -> Iterator[list[str]]:
    """A list that names SIGTERM or SIGINT once it came. The second signal does what it always does."""
    asked: list[str] = []
    old = {}

    def note(number, frame):
        asked.append(signal.Signals(number).name)
        for other, handler in old.items():
            signal.signal(other, handler)

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            old[number] = signal.signal(number, note)
    except ValueError:  # not the main thread: signals are somebody else's
        pass
    try:
        yield asked
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
