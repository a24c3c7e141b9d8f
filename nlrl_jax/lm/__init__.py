"""The language model: configuration, decoder, adapters, generation and scoring."""
