"""Looks at the ranks from outside while they run or hang, and says why a run is stuck and which rank is slow.

A *glance* is cheap: the place of a rank in its collectives, and its work. A *look* is close: stacks, collectives,
children. A *diagnosis* compares the looks of all nodes.

    rank/       runs inside the rank, and opens torch's own debug server there
    server.py   asks that server                   stacks.py   reads Python stacks, by py-spy or a signal
    process.py  reads /proc                        look.py     takes a look at every rank of this node
    hosts.py    compares hosts                     dumps.py    keeps torch's own dumps after a time-out of NCCL
    stall.py    pure: when a close look is due     polling.py  pure: ranks that poll, from look to look
    steps.py    pure: steps and lags               slow.py     pure: slow ranks, from these lags
    hung.py     pure: the rank that never came     arrivals.py pure: arrivals until they are judged
    watch.py    glances, diagnoses and reports     service.py  the doctor verb
    limits.py   every deadline, size and bound     unanswered.py  connections without an acknowledgement

Threads: ``doctor`` (watch.py) in the supervisor, and a thread for each look. Helper processes: py-spy, nvidia-smi.
Files, in the run's folder: PID.sock and PID.stack of each rank, and nccl/rank_N. The rules that judge a look (verdict,
flight, frames, seen, sequences, words) are in ``ddpctl_worker.rules``.
"""
