"""A wall clock of a host's own.

The kernel has a single wall clock for all hosts. A library that is loaded into every program of the host adds the
offset in a file to each reading; the times of files stay the kernel's.
"""

from __future__ import annotations

import base64
import shutil
import subprocess

from tests.lab.host import Host
from tests.lab.process import LabError

LIBRARY, OFFSET = "/usr/local/lib/ddpctl-lab-clock.so", "/var/lib/ddpctl-lab-clock"
SOURCE = f"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *offset;
__attribute__((constructor)) static void map(void) {{
  int fd = open("{OFFSET}", O_RDONLY | O_CLOEXEC);
  void *found = fd < 0 ? MAP_FAILED : mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
  if (found != MAP_FAILED) offset = found;
  if (fd >= 0) close(fd);
}}
int clock_gettime(clockid_t id, struct timespec *now) {{
  int failed = syscall(SYS_clock_gettime, id, now);
  if (!failed && id == CLOCK_REALTIME && offset) now->tv_sec += *offset;
  return failed;
}}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {{
  struct timespec read;
  int failed = clock_gettime(CLOCK_REALTIME, &read);
  now->tv_sec = read.tv_sec;
  now->tv_usec = read.tv_nsec / 1000;
  return failed;
}}
time_t time(time_t *where) {{
  struct timespec read;
  clock_gettime(CLOCK_REALTIME, &read);
  if (where) *where = read.tv_sec;
  return read.tv_sec;
}}
"""


def compiler() -> str | None:
    return shutil.which("cc")


class HostClock:
    """Whatever starts on the host from now on reads this clock."""

    def __init__(self, host: Host) -> None:
        self.host = host
        built = host.lab.folder / "clock.so"
        command = [str(compiler()), "-shared", "-fPIC", "-O1", "-o", str(built), "-x", "c", "-"]
        done = subprocess.run(command, input=SOURCE, text=True, capture_output=True)
        if done.returncode:
            raise LabError(f"the clock's library: {done.stderr}")
        self.set(0)
        host.run(f"base64 -d > {LIBRARY}", stdin=base64.b64encode(built.read_bytes()).decode())
        host.write("/etc/ld.so.preload", f"{LIBRARY}\n")

    def set(self, seconds: int) -> None:
        """Step the clock: so many seconds ahead of the kernel's, or behind with a minus."""
        program = f"import struct; open({OFFSET!r}, 'r+b').write(struct.pack('l', {seconds}))"
        self.host.run(f'[ -e {OFFSET} ] || truncate -s 8 {OFFSET}; /usr/bin/python3 -c "{program}"')
