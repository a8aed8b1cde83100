"""Spec values in, rich renderables out."""
