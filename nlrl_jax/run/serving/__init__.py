"""An OpenAI-compatible server over a local model."""
