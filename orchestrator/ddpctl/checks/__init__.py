"""The catalogue of preflight checks: pure questions and verdicts."""
