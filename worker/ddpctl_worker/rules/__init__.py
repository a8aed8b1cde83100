"""Rules that the controller and the nodes both apply: checkpoints, stacks, flight records and verdicts. Pure."""
