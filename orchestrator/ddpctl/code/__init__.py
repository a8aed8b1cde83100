"""The job's code folder as one archive that is named by its content."""

from ddpctl.code.archive import CodeArchive, pack, recall, receiving
from ddpctl.code.imports import code_imports, code_mentions
from ddpctl.code.listing import RUNS_FOLDER

__all__ = ["RUNS_FOLDER", "CodeArchive", "code_imports", "code_mentions", "pack", "recall", "receiving"]
