"""The job's code folder as one archive that is named by its content."""

from ddpctl.code.archive import CodeArchive, pack

__all__ = ["CodeArchive", "pack"]
