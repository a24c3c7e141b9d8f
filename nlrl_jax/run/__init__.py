"""What every run leaves behind: configuration, metrics, checkpoints, plots and a report."""
