"""Many requests to one endpoint at once."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from nlrl_jax.backends.call_progress import CallProgress
from nlrl_jax.backends.endpoint_options import EndpointOptions
from nlrl_jax.backends.transport import Stopped, Transport

J = TypeVar("J")  # one request to make


def do(
    jobs: Sequence[J],
    work: Callable[[Transport, J], Iterable[J]],
    options: EndpointOptions,
    role: str,
    progress: CallProgress,
    size: Callable[[J], int] = lambda job: 1,
    first_alone: bool = False,
) -> None:
    """Does the jobs, then those they leave. The first failure ends it, once requests under way have arrived.

    Args:
      work: (transport, job) -> the jobs that are left of it.
      progress: counts the calls; its ledger counts the tokens.
      size: calls that a job makes.
      first_alone: the others wait for the first one, which finds out what the server does not take.
    """
    if not jobs:
        return
    total, finished = sum(map(size, jobs)), []
    progress.begin(total)
    with Transport(options, progress.usage, role, progress.waiting) as transport:

        def guarded(job: J) -> Iterable[J]:
            try:
                rest = list(work(transport, job))
                finished.append(size(job) - sum(map(size, rest)))
                progress.done(finished[-1])
                return rest
            except Stopped:  # another job has failed; its error is raised below
                pass
            except BaseException as error:
                transport.stop(error)
            return ()

        try:
            while jobs:
                now, later = (jobs[:1], jobs[1:]) if first_alone else (jobs, [])
                first_alone = False
                with ThreadPoolExecutor(min(options.concurrency, len(now))) as pool:
                    try:
                        jobs = [*itertools.chain.from_iterable(pool.map(guarded, now)), *later]
                    except BaseException:  # Ctrl-C; leaving the pool waits for requests under way
                        transport.stop()
                        print("\nwaiting for replies under way; Ctrl-C again ends at once", file=sys.stderr, flush=True)
                        raise
                if transport.failure is not None:
                    raise transport.failure
        finally:  # what was given up is no longer waited for
            progress.done(total - sum(finished))
