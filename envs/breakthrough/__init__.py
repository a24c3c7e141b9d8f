"""Breakthrough: rules, environment, prompts and rule-based players."""
