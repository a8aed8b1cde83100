"""The record of a run on this host: where its files lie, what they say, and the state that follows from them.

Nouns: run, attempt, exit record, heartbeat, reserve, log segment, rank, cause. ``paths.RunPaths`` names every file.

Every room above writes through this one; no process of its own runs here. The threads are the log writer (``logs``),
which belongs to the supervisor. A terminal state never changes, and reading writes nothing.
"""
