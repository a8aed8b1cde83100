"""A stand-in for NVIDIA's management library, with the layouts of nvml.h: nvmlMemory_t, nvmlUtilization_t and
nvmlProcessInfo_t. Each GPU has a process that can be seen and a process that cannot. The use changes with every call.

Environment variables: NO_DRIVER, HOT (heat slows the GPU down), and HOLDER, a file with the pid of the first process.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

NAME = "libnvidia-ml.so.1"
SOURCE = r"""
#include <string.h>
#include <stdlib.h>
#include <stdio.h>
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } use_t;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gi, ci; } process_t;
static int device[64], calls;
static unsigned int holder(void) {
  unsigned int pid = PID;
  FILE *file = getenv("HOLDER") ? fopen(getenv("HOLDER"), "r") : 0;
  if (file) { if (fscanf(file, "%u", &pid) != 1) pid = PID; fclose(file); }
  return pid; }
#define LOST(d) if (*(int *)(d) == 2) return 15
int nvmlInit_v2(void) {
  for (int i = 0; i < GPUS + LOST_GPUS; i++) device[i] = i < GPUS ? 1 : 2;
  return getenv("NO_DRIVER") ? 9 : 0;
}
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "GPU is lost"; }
int nvmlDeviceGetCount_v2(unsigned int *n) { *n = GPUS + LOST_GPUS; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **d) { *d = &device[i]; return 0; }
int nvmlDeviceGetName(void *d, char *name, unsigned int size) { strncpy(name, "NVIDIA H100", size); return 0; }
int nvmlDeviceGetUtilizationRates(void *d, use_t *u) {
  LOST(d); u->gpu = 97 - 7 * calls++ % 50; u->memory = 40; return 0; }
int nvmlDeviceGetMemoryInfo(void *d, memory_t *m) {
  LOST(d); m->total = 85899345920ULL; m->used = 42949672960ULL; m->free = m->total - m->used; return 0; }
int nvmlDeviceGetTemperature(void *d, unsigned int sensor, unsigned int *t) { LOST(d); *t = sensor ? 1 : 71; return 0; }
int nvmlDeviceGetPowerUsage(void *d, unsigned int *mw) { LOST(d); *mw = 350500; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned int *mw) { *mw = 700000; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *why) {
  LOST(d); *why = getenv("HOT") ? 0x44 : 0x4; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned int *n, process_t *p) {
  LOST(d); if (*n < 2) return 7; *n = 2;
  p[0].pid = holder(); p[0].used = 10737418240ULL; p[1].pid = 4000000; p[1].used = ~0ULL; return 0; }
"""


def build(folder: Path, *, gpus: int = 1, lost: int = 0, pid: int = 1) -> Path | None:
    """Build the library; return None on a machine without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    source, made = folder / "nvml.c", folder / NAME
    source.write_text(SOURCE)
    sizes = (f"-DGPUS={gpus}", f"-DLOST_GPUS={lost}", f"-DPID={pid}")
    subprocess.run([compiler, "-shared", "-fPIC", *sizes, "-o", str(made), str(source)], check=True)
    return made
