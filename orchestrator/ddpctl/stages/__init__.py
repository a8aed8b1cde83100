"""The work behind each command. Stages know neither typer nor rich: they take values, and report through ``tell``.

Nouns: a ``Launch`` is a job on its hosts with code and secrets (launch.py). A ``Fleet`` holds the connections
(transport). ``tell`` takes events, which cli and render show. An outcome has a result or an error for every host.

up.py calls, in this order: preflight (probe, mesh, rehearse, recall), push.provision (the environment), imports, send
(code and py-spy), restore (checkpoints), start. restart.py builds a Launch from the record of an ended run instead.

- A running job: follow (the output), joining, status, top, doctor, report, save (checkpoint on request), stop.
- Results: fetch (files of a run), checkpoints, untracked.
- Nodes: push_data (a folder of data), execute, fix (preflight --fix), gc, remove, discover (init), trust (host keys).
- bench runs a job in order to measure it.

Threads: ``Fleet`` runs a call per host in its own threads. follow and top add a reader thread per host, mesh a thread
that keeps the listeners, joining a thread that watches a start, up.Background a thread that works ahead of its turn.

Stages keep no files of their own: files/records.py remembers ends, runs and preflights, and code/ the code archives.
Every deadline, period and size is in limits.py.
"""
