"""A run on this node, from the start verb to the exit record.

Processes:
    guardian    detached from the login (scope.py); parent of the supervisor; cleans up after it (its replacement:
                cleanup.py)
    supervisor  starts the launcher, watches the ranks, decides how the run ends, signals, writes the record
    keeper      hashes and copies checkpoints (keeper_process.py; keeping.py is the handle)
    notifier    runs the job's notifiers after the run (notifying.py decides, notifier.py is the process)
    gpuwatch    reads the GPUs for a while, prints a report and ends
The supervisor reports to the guardian over a pipe (heartbeats and facts). The agent renews the lease over two pipes.

Threads of the supervisor: the main loop; drain (the ranks' pipes); record (recorder.py: all records); the log writer;
the gang; observe, gpus, saving and the doctor's threads, each while it has work.

A failure: findings.py collects the evidence, cause.py and last_output.py judge it, ending.py agrees on an Outcome with
the other nodes, stopper.py ends the processes, and recorder.py writes the exit record.

Files: run.json, state.json, exit.json, the heartbeat, supervisor.log and the ranks' FIFOs and interpreter, below the
run's folder; record/paths.py names each. Verbs: start, stop, free_port, ask_checkpoint. shell.py is the program of
``ddpctl ssh``.
"""
