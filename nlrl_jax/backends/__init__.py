"""Language models for host-side algorithms: in this process, behind an address, or scripted."""
