"""Reinforcement learning of, and with, language-model agents in JAX."""

__version__ = "0.1.0"
