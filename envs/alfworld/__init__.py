"""ALFWorld: tasks in a household, played by text in the TextWorld engine (LAC, "ALFWorld")."""
