"""Every deadline, period and size of managed environments, with its unit and its reason.

``_S`` are seconds, ``_BYTES`` bytes; all other values are counts.
"""

from __future__ import annotations

# --- calls to nodes ---------------------------------------------------------------------------------------------------
HOLDINGS_S = 60.0  # asking a node which files it has
VERIFY_S = 900.0  # the same, when the node reads every byte again
PLATFORM_S = 45.0  # asking a node for its interpreter, machine, C library and driver
INSTALL_S = 1800.0  # installing from local wheels, and importing torch once
BUILD_S = 3600.0  # building a package with compiled code, or cloning its repository
SEND_S = 24 * 3600.0  # one file to a node, or all files to all nodes, however slow the line; a later push continues
SPREAD_START_S = 30.0  # the chain starts without a node that does not listen within this time

# --- on this machine --------------------------------------------------------------------------------------------------
RESOLVE_S = 600.0  # uv's resolver: a slow index, and packages that have to be built for their metadata
HTTP_CONNECT_S = 15.0  # connecting to a package index
HTTP_S = 30.0  # without a byte from it
DOWNLOADS = 6  # wheels at once
BUILD_ROUNDS = 3  # a build backend may ask for more packages once it runs

# --- sizes ------------------------------------------------------------------------------------------------------------
CHUNK_BYTES = 1 << 20  # a piece of a file: progress is shown, and a call cancelled, between two pieces
WANTS = 1000  # files that a node may ask for and that wait, beyond each file once
SPREAD_LEAST_BYTES = 8 << 20  # less, for all hosts together, goes from the controller to each host
BUILT_WHEEL_BYTES = 8 << 30  # a wheel that a node may send
WHEEL_FILES = 200_000  # files in a wheel that a node has built
WHEEL_METADATA_BYTES = 4 << 20  # METADATA or WHEEL in it
LINES_SHOWN = 15  # of a failed build's output, its end
