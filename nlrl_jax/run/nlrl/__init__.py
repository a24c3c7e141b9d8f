"""Natural-language RL as a run: what a checkpoint holds, and one iteration of each algorithm."""
