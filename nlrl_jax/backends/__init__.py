"""Language models for host-side algorithms: in this process, at an endpoint, or scripted."""
