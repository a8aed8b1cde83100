"""Questions that misbehave, for test_probe."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any


def hang(params: dict[str, Any], context: dict[str, Any]) -> None:
    time.sleep(300)


def fail(params: dict[str, Any], context: dict[str, Any]) -> None:
    raise RuntimeError("no such luck")


def crash(params: dict[str, Any], context: dict[str, Any]) -> None:
    os._exit(7)


def child(params: dict[str, Any], context: dict[str, Any]) -> None:
    subprocess.run([sys.executable, "-c", "import time; time.sleep(300)", params["mark"]], check=False)


def big(params: dict[str, Any], context: dict[str, Any]) -> str:
    return str(params["letter"]) * int(params["bytes"])
