"""Runs that play host games by text: their tasks, prompts, batches in threads and steps on disk."""
