"""Our service beside another one, on one machine, in one run."""
