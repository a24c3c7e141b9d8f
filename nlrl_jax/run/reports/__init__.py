"""Reports of finished runs, one file per algorithm."""
