"""The command line. Commands read arguments, ask the user, call a stage, and print its outcome through render.

``app.main`` is the console script. ``program.py`` lists the commands and turns errors into output and exit codes. It
imports only the module of the typed command.

Commands, a file for each group:

- up.py: up, restart. preflight.py: preflight. init.py: init, schema. bench.py: bench. top.py: top.
- metrics.py: metrics.
- runs.py: ps, status, doctor, report, kill, rm.
- output.py: tail, attach, fetch. follow.py prints the output for them and for up.
- nodes.py: exec, push, gc, trust. ssh.py: ssh.
- checkpoints.py: checkpoints, checkpoint.

Shared: session.py (options, inventory, fleet, printing), prompt.py (questions on the terminal), interrupts.py
(signals), state.py (global options), limits.py.

Completion: complete.py answers a shell without heavy imports. vocabulary.py reads the commands from typer for its
cache, ``completion.json`` in the user's cache folder. This package has no other file.
"""
