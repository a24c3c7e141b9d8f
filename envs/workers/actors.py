"""Workers as actors of a Ray cluster (the extra `ray`): that of RAY_ADDRESS, or one of this machine alone."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from typing import Any

from nlrl_jax.envs.workers.process import WorkerLost


def connect(number: int) -> int:
    """Joins the cluster -> how many actors there are to be: `number`, or one for each CPU.

    Raises:
      ValueError: Ray is not installed, or its cluster cannot be reached.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise ValueError("env_workers ray needs the package ray: pip install 'nlrl_jax[ray]'") from None
    if not ray.is_initialized():
        try:
            with warnings.catch_warnings():
                # JAX warns of forks; Ray's child runs another program at once, so that no lock of JAX's is waited for
                warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
                ray.init(log_to_driver=bool(os.environ.get("NLRL_TRACEBACK")), logging_level="error")
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ValueError(f"env_workers ray: {' '.join(str(error).split())}") from None
    return number or max(1, int(ray.cluster_resources().get("CPU", 1)))


class Actor:
    """A `GameServer` somewhere in the cluster; a channel as `process.Process` is one.

    Args:
      number: of the worker, by which its node is chosen.
    """

    def __init__(self, number: int):
        self.number = number
        self.actor: Any = None

    def start(self) -> None:
        """Starts it, unless it runs, on the nodes in turn. (Ray's own strategy SPREAD may put two on one node.)"""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if self.actor is None:
            places = _places()
            where = NodeAffinitySchedulingStrategy(places[self.number % len(places)], soft=True)
            remote = ray.remote(_actor_class()).options(scheduling_strategy=where, max_restarts=0)
            self.actor = remote.remote([path or os.getcwd() for path in sys.path])

    def exchange(self, request: Any, patience: float) -> Any:
        """Asks and answers. Raises WorkerLost: its node or process has died, or it took too long and is ended."""
        import ray

        try:
            self.start()
            return ray.get(self.actor.answer.remote(*request), timeout=patience)
        except ray.exceptions.GetTimeoutError:
            reason = f"took longer than {patience:g} seconds"
        except ray.exceptions.RayError as error:
            reason = f"is lost ({type(error).__name__})"
        self.stop()
        raise WorkerLost(f"its Ray actor {reason}")

    def node(self) -> str:
        """The node on which it runs."""
        import ray

        return ray.get(self.actor.node.remote())

    def stop(self) -> None:
        """Ends the actor."""
        import ray

        if self.actor is not None and ray.is_initialized():
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(self.actor)
        self.actor = None


def _places() -> list[str]:
    """The ids of living nodes, one for each CPU: first one of each node, then a second one, ..."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    cpus = [(k, node["NodeID"]) for node in nodes for k in range(max(1, int(node["Resources"].get("CPU", 1))))]
    return [node for _, node in sorted(cpus)]


def _actor_class() -> type:
    """The class in a function, so that Ray sends its code: other nodes find our modules once they have our path."""

    class GameActor:
        def __init__(self, path: list[str]):
            import os
            import sys

            os.environ["JAX_PLATFORMS"] = "cpu"
            sys.path += [folder for folder in path if folder not in sys.path]
            from nlrl_jax.envs.workers.serve import GameServer

            self.server = GameServer()

        def answer(self, *request):
            return self.server.answer(*request)

        def node(self):
            import ray

            return ray.get_runtime_context().get_node_id()

    return GameActor
