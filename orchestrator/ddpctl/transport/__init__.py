"""The only package that opens a connection."""
