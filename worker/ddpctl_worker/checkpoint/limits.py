"""Every deadline, period and size of the checkpoints. Times are seconds, sizes are bytes."""

from __future__ import annotations

# --- files on the disk (folder.py, jobfolder.py, manifest.py, whole.py)
MOST_DEPTH = 8  # folders in folders; a deeper tree is no checkpoint
MOST_NAME_BYTES = 250  # of a file's name; file systems allow 255, and a suffix of ddpctl must fit too
MOST_ESCAPED_BYTES = 200  # of an entry's name in the name of its manifest; a draft of it adds 25, and 255 are allowed
BLOCK_BYTES = 1 << 20  # read at a time, to hash a file or to compare its checksums
MOST_INDEX_BYTES = 1 << 30  # of a .metadata file; the largest models have some hundred MB
MOST_SAFETENSORS_HEADER_BYTES = 100_000_000  # the limit of safetensors itself
MOST_JSON_BYTES = 64 << 20  # a larger file of JSON is not parsed
MOST_STARTS = 50  # starts on record; the run of a checkpoint older than all of them is not known
MOST_REMOVED = 200  # removed entries on record, for the hosts that have copies of them

# --- the keeper (keeper.py, fresh.py; run/keeper_process.py paces it)
KEEPER_LOOK_S = 2.0  # between two looks; an entry that is the same in both has stopped changing
KEEPER_SHARE = 0.05  # of one core for all looks, hashing not counted; very many files or a slow disk take long
STABLE_S = 2.0  # a new checkpoint that has not changed for so long ends the wait of ``save``
DEATH_CLOCK_S = 0.1  # the recorded time of a rank's death may be so much later than the death itself
MOST_UNFINISHED = 5  # files that the end of the ranks has cut off, in the record
SET_BACK_S = 10.0  # a clock that jumps back by less has only been corrected; the user hears nothing

# --- copies on other hosts (replicate.py, copy.py)
REPLICATION_LOOK_S = 3.0  # between two questions to a host whose checkpoints are copied
MOST_PAUSE_S = 60.0  # between two tries with a host that cannot be reached, or whose answers are wrong
MOST_RATE = 100e6  # bytes/s: copies leave the network to the training
LINK_SHARE = 0.25  # of the link's speed, for the same reason
MOST_ANSWER_BYTES = 64 << 20  # of a list or a manifest that a peer sends
MOST_MANIFESTS = 1000  # of other hosts, in memory
HOLD_S = 20.0  # a replaced version is kept for a host that lacks it, until that host is silent for so long
FINAL_READ_S = 60.0  # after the run: the time for other hosts to read the last checkpoints
IDLE_S = 20.0  # after the run: copying that stands still for so long has ended
DONE_LOOK_S = 1.0  # between two looks whether the last copies are made
THREAD_END_S = 5.0  # for the copying thread to end; a longer transfer is cut with its connection
INCOMING_S = 86400.0  # a transfer that was interrupted and not continued for so long is removed

# --- before a start (restore.py)
PROGRESS_S = 1.0  # between two messages to the controller about the bytes hashed or fetched
