"""What the controller and the worker agree on: the contract, the pipe between them, and the bootstrap."""
