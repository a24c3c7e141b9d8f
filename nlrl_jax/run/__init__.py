"""What every run leaves: configuration, metrics, checkpoints, plots and a report."""
