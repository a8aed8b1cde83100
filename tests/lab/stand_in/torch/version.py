from __future__ import annotations

__all__ = ["__version__", "cuda", "git_version", "hip"]
__version__ = "2.13.0+cpu"
cuda: str | None = None
git_version = "stand-in"
hip: str | None = None
