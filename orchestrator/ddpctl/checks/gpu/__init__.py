"""GPUs: the GPUs that the job uses, and whether they work."""
