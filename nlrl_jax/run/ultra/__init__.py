"""ULTRA as a run: its options, the base agents, the stages, and what a dry run prints."""
