"""XLand-MiniGrid's MiniGrid port for `benchmarks.games`, in an environment that has xminigrid: prints steps a second.

python benchmarks/peers/xminigrid.py BATCH STEPS
"""

import sys
import time

import jax
import xminigrid


def main() -> None:
    batch, steps = int(sys.argv[1]), int(sys.argv[2])
    env, params = xminigrid.make("MiniGrid-EmptyRandom-8x8")

    def step(timestep, key):
        actions = jax.random.randint(key, (batch,), 0, env.num_actions(params))
        timestep = jax.vmap(env.step, (None, 0, 0))(params, timestep, actions)
        return timestep, timestep.observation.sum()

    @jax.jit
    def play(key):
        timestep = jax.vmap(env.reset, (None, 0))(params, jax.random.split(key, batch))
        return jax.lax.scan(step, timestep, jax.random.split(key, steps))[1].sum()

    play(jax.random.key(0)).block_until_ready()
    start = time.perf_counter()
    play(jax.random.key(1)).block_until_ready()
    print(batch * steps / (time.perf_counter() - start))


if __name__ == "__main__":
    main()
