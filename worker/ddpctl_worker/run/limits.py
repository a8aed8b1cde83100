"""Every deadline, period and size of a run on its node. Times are seconds."""

from __future__ import annotations

# --- the start of a run (start.py)
OTHER_START_S = 60.0  # a start of the same run that is under way
FAILED_START_S = 3.0  # until the starter itself records a failed start, if the run has no living guardian
CLEAN_UP_S = 60.0  # the same with a living guardian, which ends all processes and then records the end
PY_SPY_S = 5.0  # py-spy prints its version in milliseconds
STOP_BYTES = 4 << 10  # room on the disk for the file of a stop
PIPE_BYTES = 1 << 20  # each pipe of a rank: the rank writes on while the supervisor is busy

# --- the supervisor's loop (supervisor.py, drain.py)
TICK_S = 0.04  # between two turns of a loop that ends processes
SCAN_STARTING_S = 0.2  # between two looks at all processes of the run, until all ranks were seen
SCAN_RUNNING_S = 3.0  # the same afterwards
DRAIN_READ_BYTES = 256 << 10  # of a pipe, before the other pipes have their turn
UNFINISHED_LINE_S = 0.2  # then a line without its end is shown: a prompt, a progress bar
ENDLESS_WRITER_S = 20.0  # for the rest in a pipe with a writer that never stops
DRAIN_FAULT_PAUSE_S = 0.05  # after a fault of the drain
TAIL_BYTES = 64 << 10  # of each stream, kept in memory to explain a failure

# --- the record (recorder.py)
DISK_ANSWER_S = 2.0  # a disk that takes longer to answer is away: the supervisor continues without the answer
WAITING_NOTES = 1000  # lines for supervisor.log
RECORDER_LOOK_S = 1.0  # between two heartbeats, looks at the run's folder, and attempts to write a record

# --- the guardian and its replacement (guardian.py, cleanup.py)
BEAT_S = 1.0  # between two heartbeats from the supervisor to its guardian
STUCK_LOOP_S = 20.0  # a loop without a heartbeat for so long will not turn again
FIRST_TURN_S = 120.0  # the same before the first heartbeat, unless the run has a longer `timeouts.start`
LISTENER_ASLEEP_S = 5.0  # a listener that wakes up so late was asleep itself: the machine was suspended
GUARDIAN_LOOK_S = 1.0  # between two looks at the supervisor, and at the processes of the run
LEASE_OVER_S = 1.0  # the supervisor ends its ranks after the end of the lease; it needs a tenth of that
LEFTOVERS_GRACE_S = 10.0  # at most, from SIGTERM to SIGKILL for processes that a dead supervisor left
LEASED_GRACE_S = 2.0  # the same where other hosts wait for the lease to end
SUPERVISOR_END_S = 5.0  # a supervisor that has ended, or was killed, is gone
LEASED_SUPERVISOR_END_S = 0.5  # the same where other hosts wait for the end of the lease, and start their ranks then
CLEAN_UP_PAUSE_S = 10.0  # at most, between two attempts to clean up
REPLACEMENT_PAUSE_S = 5.0  # between two starts of a replacement guardian that dies at once

# --- a rank that hangs, or waits (deadlines.py)
LOOP_ASLEEP_S = 10.0  # the loop asks every second: after such a gap the machine was suspended
LONE_LAUNCHER_S = 20.0  # a launcher may outlive its last rank for so long
EXIT_BARRIER_S = 330.0  # the same where torch's exit barrier waits for other nodes: that takes up to 300 s
HUB_FIRST_S = 3.0  # the hub knows which nodes are missing, so the members let the hub speak first

# --- the cause of a failure (cause.py, findings.py, ending.py, last_output.py)
OOM_BEFORE_DEATH_S = 5.0  # from the kernel's signal to the death: large memory takes a while to be freed
LAUNCHER_SIGNALS_S = 0.2  # a launcher takes longer than this to signal its ranks after the first has failed
EXCEPTION_QUIET_S = 2.0  # a rank that writes later than this after an exception has handled it
HUNG_EXIT_S = 3.0  # a rank that lives so long after an exception hangs in its exit
# A traceback that a living rank may have handled makes it suspect for so long: its peers time out after 600 s (NCCL) or
# 1,800 s (gloo) by default.
SUSPECT_TRACEBACK_S = 1900.0
LAUNCHER_REPORT_S = 1.0  # from the failure of a rank to the launcher's report
CULPRIT_S = 3.0  # the victims on a node wait so long for a culprit; then a rank that ended early is suspected
CATCH_UP_S = 1.0  # the last output of a rank comes through its pipe; the supervisor's loop stands still meanwhile
MOST_CATCH_UP_S = 5.0  # how long a failure waits for that output on a machine without a free processor
VERDICT_S = 12.0  # a node that failed waits so long for the gang to agree on the cause
PEER_FAILURE_LINES = 60  # of output without a traceback, in which a peer's failure is looked for
QUOTE_CHARACTERS = 200  # of a line that a message quotes
TRACEBACK_CHARACTERS = 16 << 10  # of the traceback in a record
NOTICE_LINES = 15  # that follow torch's notice and belong to it
ERROR_LINES = 60  # of an exception: NCCL's and these of state dicts are long

# --- the end of a job's processes (stopper.py)
STUCK_LAUNCHER_S = 2.0  # a launcher without ranks that ignores SIGTERM for so long sits in torch's exit barrier
STUCK_LAUNCHER_SHARE = 0.1  # of a core, at most: a launcher that uses more is on its way out on a busy machine
UNKILLABLE_S = 10.0  # after SIGKILL: a process that is still there cannot be killed (uninterruptible in the kernel)
LEFTOVER_S = 10.0  # for processes that outlive a launcher, before SIGTERM, unless the job says otherwise
LEFTOVER_GRACE_S = 3.0  # for the same processes, from SIGTERM to SIGKILL

# --- the end of a run (supervisor.py)
SENDER_S = 1.0  # from a death by SIGTERM to the same signal for this process: systemd signals a whole session at once
LAST_OUTPUT_S = 30.0  # for the last output to come out of the pipes
LOG_WRITTEN_S = 30.0  # for the log before the exit record: a reader that follows the log sees its last line
DUMPS_S = 5.0  # for torch's dumps, after the last rank (observer.py)
LAST_RANK_LOOK_S = 0.5  # for the last look at ranks that are about to be stopped (observer.py)

# --- the stop verb (stop.py, growing.py)
STOP_LOOK_S = 0.02  # between two looks at the supervisor
STOP_REPORT_S = 2.0  # between two reports of files that grow, and two looks for a stop that gives more time
STOP_WRITE_S = 2.0  # for the disk to take the file of a stop
WATCHERS_END_S = 2.0  # supervisor and guardian end once the run has; with a node cut off they stay a little longer
HUNG_SUPERVISOR_S = 2.0  # beyond the grace, for a supervisor without a heartbeat
GROWING_FILES = 20_000  # at most, in a look for files that grow

# --- the keeper of checkpoints (keeping.py)
KEEPER_LINGER_S = 3600.0  # at most, after the run, to copy what was written right before its end; nothing waits for it
KEEPERS_MEET_S = 20.0  # at the end of a run, for each host to hear where the others serve: a busy host is slow to start
LAST_KEEPER_LOOK_S = 30.0  # for the last look: a checkpoint written right before the end gets its manifest
KILLED_KEEPER_LOOK_S = 3.0  # the same after a kill: a user waits for the proof that nothing is left
FILE_TIME_S = 1.0  # a file's time may be so much before the clock's
KEEPER_GONE_S = 0.5  # a killed keeper is gone

# --- the scope of a run (scope.py)
# For each answer of systemd and logind before the start: they need 50 ms, and seconds where all processors are busy.
SCOPE_ANSWER_S = 5.0
SCOPE_LOOK_S = 0.02  # between two looks whether systemd has moved the process
# From SIGWINCH to SIGKILL for a scope that systemd stops: SHUTDOWN_SAVE_S, VERDICT_S, SCOPE_GRACE_S,
# KILLED_KEEPER_LOOK_S and the last output. The user's own systemd has 120 s for its end.
SCOPE_STOP_S = 110.0
SCOPE_GRACE_S = 30.0  # at most, from SIGTERM to SIGKILL for ranks after the save

# --- the shutdown of a machine (saving.py)
SHUTDOWN_SAVE_S = 60.0  # for the ranks to save; systemd gives a service 90 s, and the stop comes after this
SYSTEM_STATE_S = 1.0  # for systemd to say whether the machine shuts down; the supervisor's loop waits meanwhile
SAVED_LOOK_S = 0.5  # between two looks for a new checkpoint

# --- GPUs (gpuwatch.py)
GPU_READING_S = 2.0  # between two readings: the driver averages over the last second or less
FIRST_GPU_WATCH_S, MOST_GPU_WATCH_S = 4.0, 30.0  # of readings, for a report: short runs have a beginning as well
GPU_PROCESS_S = 15.0  # for the process that reads to start and to end
GPU_READING_SHARE = 0.004  # of a core, at most: where the driver makes readings expensive, they are rarer
GPU_AVERAGES, GPU_AVERAGE_S = 240, 10.0  # averages in the record; the seconds in each average at first

# --- notifiers (notifying.py, notifier.py)
NOTIFIERS_S = 30.0  # for all notifiers of an event together: they run at the same time
NOTIFIER_GRACE_S = 1.0  # from SIGTERM to SIGKILL
NOTIFIER_OUTPUT_BYTES = 8 << 10  # of a notifier's output, for the log
NOTIFIER_READ_BYTES = 1 << 20  # of the output that are read; a notifier that writes more blocks until its deadline
VARIABLE_CHARACTERS = 4000  # of an environment variable
