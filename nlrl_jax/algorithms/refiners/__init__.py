"""What ULTRA is compared with: other ways to refine an agent, each over the PPO of `algorithms/ppo.py`."""
