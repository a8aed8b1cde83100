"""Verbs that only read or tidy: ``tail``, ``fetch``, ``history``, ``untracked``, ``top`` and ``gc``."""
