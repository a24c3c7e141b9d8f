"""BabyAI-Text: one or two rooms seen in part, six missions, sentences for everything (LAC, "BabyAI-Text")."""
