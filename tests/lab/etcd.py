"""etcd on a host of the lab, started as docs/elastic.md says."""

from __future__ import annotations

import shutil
import time

from tests.lab.host import Host
from tests.lab.process import LabError

PORT = 2379
START_S = 20.0


def missing_etcd() -> str | None:
    """Why there is none here, or None."""
    return None if shutil.which("etcd") else "there is no etcd: tests/setup/system-packages installs it"


def start_etcd(host: Host) -> None:
    """One server with the old interface, which torch needs; back when it listens. It ends with `heal`, or the host."""
    url = f"http://{host.address}:{PORT}"
    words = f"etcd --enable-v2 --data-dir /tmp/etcd --listen-client-urls {url} --advertise-client-urls {url}"
    process = host.popen(f"exec {words} >/tmp/etcd.log 2>&1")
    deadline = time.monotonic() + START_S
    while host.port_free(PORT):
        if process.poll() is not None or time.monotonic() > deadline:
            raise LabError(f"etcd does not listen on {host.name}: {host.read('/tmp/etcd.log')[-2000:]}")
        time.sleep(0.1)
