"""What a kill leaves: copies of a run's folder at moments of an unbroken run."""

import contextlib
import os
import pathlib
import shutil
import threading
from unittest import mock

from nlrl_jax.run.host_games.journal import Journal
from nlrl_jax.run.metrics import MetricsWriter


class Moments:
    """Watches a folder. A moment is "PATH#N": the Nth time that a file or folder of this name, within the run's folder,
    is about to take its place, or has got a line more.

    Attributes:
      seen: all moments, in order. copies: moment -> the folder as a kill would leave it.
    """

    def __init__(self, folder, wanted, into):
        self.folder, self.wanted, self.into = pathlib.Path(folder), wanted, pathlib.Path(into)
        self.seen, self.copies, self._lock = [], {}, threading.Lock()

    @contextlib.contextmanager
    def watch(self):
        with contextlib.ExitStack() as end:
            for name in ("replace", "rename"):
                end.enter_context(mock.patch.object(os, name, self._before(getattr(os, name))))
            end.enter_context(mock.patch.object(Journal, "add", self._after(Journal.add, lambda own: own.path)))
            lines = self._after(MetricsWriter.write, lambda own: own._metrics.name)
            end.enter_context(mock.patch.object(MetricsWriter, "write", lines))
            yield

    def _before(self, move):
        def moved(source, target, **more):
            self._note(target)
            return move(source, target, **more)

        return moved

    def _after(self, write, path):
        def written(own, *args, **more):
            result = write(own, *args, **more)
            self._note(path(own))
            return result

        return written

    def _note(self, path):
        path = pathlib.Path(path)
        if not path.is_relative_to(self.folder):
            return
        with self._lock:
            name = str(path.relative_to(self.folder))
            moment = f"{name}#{1 + sum(one.startswith(f'{name}#') for one in self.seen)}"
            self.seen.append(moment)
            if moment in self.wanted:
                self.copies[moment] = self.into / str(len(self.copies))
                shutil.copytree(self.folder, self.copies[moment])
