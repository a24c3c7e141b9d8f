"""Text as something a compiler can see: templates, parsers and the language agent policy."""
