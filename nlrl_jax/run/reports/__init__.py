"""The pages that finished runs leave, one file an algorithm."""
