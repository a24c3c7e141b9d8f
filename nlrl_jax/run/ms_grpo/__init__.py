"""Runs of MS-GRPO: what training on the device and training in transcripts share, and the latter."""
