"""Runs of LAC and planners: their prompts, their tasks, and episodes that survive a kill."""
