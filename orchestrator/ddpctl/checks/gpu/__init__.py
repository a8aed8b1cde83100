"""GPUs: what the job uses of them, and whether they are fit for it."""
