"""Vectorised play: a policy, a game and many episodes at once."""
