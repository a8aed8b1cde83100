"""Every deadline, period and size of the code archive, with its unit and its reason.

``_S`` are seconds, ``_BYTES`` bytes; all other values are counts.
"""

from __future__ import annotations

GIT_S = 120  # a git command: `git status` of a large work tree on a cold disk
PACK_ATTEMPTS = 3  # files may change while they are packed

ARCHIVE_BYTES = 512 << 20  # the files of a code folder; a larger folder is refused
MUCH_BYTES = 50_000_000  # more is a data set or results, which travel to every node with each change: a warning
CHUNK_BYTES = 1 << 20  # a piece of a file
SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system (FAT): two changes may have the same time
SHOWN_SECRETS = 5  # names in the line about files that are not sent: more names hide the advice at its end
KEEP_DAYS = 30  # an unused archive in the cache

IMPORTS_BYTES = 4 << 20  # a file whose imports or names are read
MENTIONS_FILES = 1000  # files that are searched for a name
