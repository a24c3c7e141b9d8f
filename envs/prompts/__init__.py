"""What is said to a language model in each role, one module a game."""
