"""Every size and deadline of the store. Times are seconds, sizes are bytes, unless a comment says otherwise."""

from __future__ import annotations

# --- blobs -----------------------------------------------------------------------------------------------------------
RESERVE_BYTES = 16 << 20  # left free, so that records and logs of running jobs still find room
READ_BYTES = 1 << 20  # of a file at a time
SYNC_BYTES = 256 << 20  # written between two syncs: a single sync at the end of a large file may take minutes

# --- connections between nodes ---------------------------------------------------------------------------------------
CHUNK_BYTES = 256 << 10  # the most in one chunk
LINE_BYTES = 1 << 20  # the most in one line
MAX_CONNECTIONS = 64  # that one node serves at a time
CONNECT_S = 2.5  # for a TCP connection
HANDSHAKE_S = 5.0  # for each step of a TLS handshake, and for the first request
ALIVE_S = 1.5  # between two signs of life from a server that waits for bytes
SILENT_S = 8.0  # a peer that sends neither data nor a sign of life for so long is dead
SEND_S = 20.0  # a peer that takes no data for so long is given up
LEAST_BYTES, LEAST_S = 256 << 10, 30.0  # a peer that has the bytes and sends fewer in this time is given up

# --- choice of the peer ----------------------------------------------------------------------------------------------
STARVED_S = 40.0  # without a byte from a live peer: longer than the detection of a dead SSH link takes
PACE_LOOK_S = 3.0  # between two looks whether an earlier node of the chain is far ahead
LAG_BYTES = 24 << 20  # behind an earlier node of the chain: a change to that node is worth its cost
MIN_GAIN = 1.3  # a change of the peer that gains less shows that this node's own link is slow
MAX_UNREACHABLE = 3  # unreachable nodes in a row; after that the controller is asked

# --- the controller --------------------------------------------------------------------------------------------------
PROGRESS_S = 0.5  # between two messages of progress
PIECE_BYTES = 4 << 20  # the most in one piece of a file from the controller
QUEUED_PIECES = 8  # pieces that wait for the disk; after that the controller is slowed down

# --- data folders ----------------------------------------------------------------------------------------------------
DATA_TIME_S = 315532800  # 1980, as in zip files: a file that has this time is complete, durable and unchanged since
MISSING_RANGES = 10_000  # in an answer, which must fit a frame

# --- programs --------------------------------------------------------------------------------------------------------
INSTALL_S = 900.0  # for one run of uv
IMPORT_S = 600.0  # for the first imports: a cold network file system needs minutes for torch
BUILD_S = 3500.0  # for a wheel: compiling CUDA code may take most of an hour
OUTPUT_LETTERS = 3500  # characters at the end of a program's output that are sent
SUMMARY_LETTERS = 1500  # characters of the same on one line
IMPORT_LETTERS = 600  # characters of a failed import
