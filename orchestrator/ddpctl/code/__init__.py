"""A job's code folder as an archive that is named by its content.

``listing`` chooses the files, ``git`` asks git for them, ``archive`` packs them, ``imports`` reads the imports of the
job's program. ``datafolder`` reads a folder of data. Processes: git. Files: archives below the user's cache folder, in
``ddpctl/code``. Deadlines and sizes stand in ``limits``.
"""

from ddpctl.code.archive import CodeArchive, find_archive, pack, receive_archive
from ddpctl.code.imports import code_imports, code_mentions
from ddpctl.code.listing import RUNS_FOLDER

__all__ = ["RUNS_FOLDER", "CodeArchive", "code_imports", "code_mentions", "find_archive", "pack", "receive_archive"]
