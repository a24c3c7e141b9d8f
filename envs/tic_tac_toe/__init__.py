"""Tic-tac-toe: rules, environment, prompts and rule-based players."""
