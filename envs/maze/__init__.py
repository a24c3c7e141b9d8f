"""The mazes of LMRL-Gym: rules, environment, prompts and rule-based players."""
