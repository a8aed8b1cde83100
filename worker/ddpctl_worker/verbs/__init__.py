"""Verbs that only read or tidy: ``fetch``, ``tail``, ``top``, ``history``, ``untracked`` and ``gc``.

Each verb runs in the process of its own request, beside the run's processes. ``top`` reads disk and driver in threads
of its own (gauge.py), because both may hang. The package owns no files; ``gc`` removes files of other packages.
"""
