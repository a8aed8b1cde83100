"""Every deadline and size of the slots. Times are seconds, sizes are bytes."""

from __future__ import annotations

DECISION_S = 10.0  # for another start on this host to decide; it takes milliseconds
DECISION_PAUSE_S = 0.01  # between two attempts to take the lock of the decision
CLAIM_BYTES = 16 << 10  # of a claim: a longer file is not ddpctl's
CONFIGURATION_BYTES = 64 << 10  # of /etc/ddpctl.conf
MOST_CLAIMS = 1000  # on a host
SHOWN_CLAIMS = 100  # of other accounts, the newest, in each pulse of `ddpctl top`
MOST_BOOTTIME_S = 1e10  # since the boot of a host, in a claim: three centuries
MOST_SLOTS = 1 << 20  # that a claim wants, and numbers of slots: the controller takes no larger numbers
SHOWN_LETTERS = 200  # of any text in another account's claim
GPU_LIST_S = 10.0  # for nvidia-smi, which may take seconds where the driver has to start, and may hang
FOREIGN_MIB = 512.0  # as in the check gpu.busy: a process with less memory has a context only, or belongs to a desktop
