"""Several processes that train one model together: how they start, meet, agree and end."""

from nlrl_jax.multihost import any_of, every, first, from_first, several, wait
from nlrl_jax.run.processes.joining import define_flags, find_cluster, start, together

__all__ = [
    "any_of", "define_flags", "every", "first", "find_cluster", "from_first", "several", "start", "together",
    "wait",
]  # fmt: skip
