"""Weights in and out: Hugging Face folders, GGUF files, PEFT adapters."""
