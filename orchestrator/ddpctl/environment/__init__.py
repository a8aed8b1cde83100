"""Managed environments: lock, wheelhouse, spread, install."""
