"""Readers of other tools' files with hosts: hostfiles and accelerate's configuration."""
