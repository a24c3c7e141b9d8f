"""Environments as actors of a Ray cluster: two nodes on this machine, one of which dies."""

import time

import pytest

from nlrl_jax import envs
from nlrl_jax.rollouts.host_games import StepDecisions, play

pytestmark = pytest.mark.ray
ray = pytest.importorskip("ray")


def test_a_node_that_dies_costs_its_episodes_and_not_the_run():
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        tasks = [("", seed) for seed in range(4)]
        whole = play(envs.make_host("tests.envs.rooms:Rooms"), decide_until(), tasks)
        game = envs.make_host("tests.envs.rooms:Rooms", env_workers="ray", env_timeout=60)
        states = [start.state for start in game.reset(tasks)]
        nodes = {state.worker.channel.node() for state in states}
        assert len(nodes) == 2  # one actor on each
        assert play(game, decide_until(), tasks) == whole

        doomed = next(state.worker for state in states if state.worker.channel.node() == node.node_id)

        def end():
            cluster.remove_node(node, allow_graceful=False)
            with pytest.raises(ray.exceptions.RayError):  # its actor follows its node within some seconds
                for _ in range(300):
                    ray.get(doomed.channel.actor.node.remote(), timeout=60)
                    time.sleep(0.1)

        episodes = play(game, decide_until(1, end), tasks)
        lost = [i for i, episode in enumerate(episodes) if episode.error]
        assert 0 < len(lost) < 3 and all("its Ray actor is lost" in episodes[i].error for i in lost), episodes
        assert all(episodes[i] == whole[i] for i in range(4) if i not in lost)
        assert play(game, decide_until(), tasks) == whole  # on the node that is left
    finally:
        ray.shutdown()
        cluster.shutdown()


def decide_until(step=-1, happens=None):
    """Actions that tell the episode and the step; at one step something happens before."""

    def decide(histories, t):
        if t == step:
            happens()
        actions = [f"{history.task[1]} {t}" for history in histories]
        return StepDecisions(actions, [""] * len(actions), [[]] * len(actions), [{}] * len(actions))

    return decide
