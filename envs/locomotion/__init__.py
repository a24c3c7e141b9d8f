"""Hopper, Walker2d and Ant: rules, environment, prompts and rule-based players."""
