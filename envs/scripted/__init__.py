"""Rule-based scripts that play the roles of a language model, one module a game."""
