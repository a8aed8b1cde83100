"""Rules that the controller and the nodes both apply. Every function is pure: no file, no clock, no process.

Checkpoints
- entries.py: which files of a job's folder are a checkpoint (an entry), and the step and series in its name.
- attempts.py: which attempt wrote a file. order.py: which of several saves is newer.
- saves.py: which files belong to the same save. complete.py: when a save is complete.
- choice.py: which checkpoints a start resumes from, and which host copies which file. unite.py: the list for the user.

Why a run hangs
- frames.py: Python stacks. flight.py and pickled.py: torch's record of the last collectives of a rank.
- rank_view.py: one rank as a look has found it. sequences.py: ranks that called different collectives.
- families.py: processes that a rank has started. verdict.py and phrases.py: the diagnosis and its sentences.

Slots
- slots.py: the slots that a run gets on a host, and the waiting run that is next.

Logins
- login.py: whether systemd-logind ends the processes of a session with the session.

Data
- datafolder.py: the listing of a data folder, whose hash is the version of the data.

Metrics
- thinned.py: a long series as a bounded number of points.

limits.py has every deadline, size and count. The package owns no file, thread or process.
"""
