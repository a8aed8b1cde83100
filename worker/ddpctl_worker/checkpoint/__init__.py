"""What a job saves: which of it is a checkpoint, whether it is whole, and where it lies."""
