"""Every deadline, threshold and size of the checks, with its unit and its reason.

``_S`` are seconds, ``_BYTES`` bytes, ``_MIB`` mebibytes, ``_SHARE`` fractions of 1; all other values are counts.
"""

from __future__ import annotations

_MIB = 1 << 20

# --- deadlines of questions -------------------------------------------------------------------------------------------
NAMES_S = 12.0  # looking up names: a dead DNS server answers nothing for 5 s or more
LOGIN_S = 6.0  # logind's settings, over D-Bus
SHELL_S = 10.0  # the start of an interactive shell, with the user's profile
DISK_S = 8.0  # a folder: a network file system may hang
ADAPTERS_S = 8.0  # InfiniBand, RoCE and EFA adapters: the start of a process that opens them
KERNEL_LOG_S = 8.0  # reading the whole kernel log
FABRIC_MANAGER_S = 8.0  # systemctl and nv-fabricmanager
LEFTOVERS_S = 8.0  # reading the environment of every process
TREE_S = 12.0  # reading the files of a workdir or of a data folder
TORCH_IMPORT_S = 60.0  # import torch: a cold environment on a network disk takes tens of seconds
DEVICES_S = 20.0  # the start of CUDA or HIP in a process
IMPORTS_S = 120.0  # all imports of a script, one after the other

# --- times ------------------------------------------------------------------------------------------------------------
SLOW_NAMES_S = 2.0  # a name look-up that takes longer has waited for a dead server
SLOW_SHELL_S = 2.0  # a profile that takes longer is noticed at every command
SKEW_S = 5.0  # a larger difference between clocks is a finding
CLOCK_SURE_S = 1.0  # only clocks that are known to within this time count in the reported difference
C10D_SKEW_S = 15.0  # c10d heartbeats are wall-clock times and expire after 3 x 5 s
REHEARSAL_ENDS_S = 3.0  # the nodes of a rehearsal begin and end within this time of each other
SAME_FALL_S = 60.0  # the driver writes a GPU's fall off the bus in two lines within a moment
FRESH_XID_S = 86400.0  # an older GPU fault is a warning: the GPU may have been reset since

# --- disks ------------------------------------------------------------------------------------------------------------
DISK_LEAST_BYTES = 100_000_000  # room for the records and logs of a run
DISK_LOW_BYTES = 10**9  # less is a warning
INODES_LEAST = 1000
INODES_GIVEN = 1_000_000  # proposed for a tmpfs without free inodes
SHM_LEAST_BYTES = 32 * _MIB  # NCCL alone takes about 10 MB for each pair of ranks on a node
SHM_A_RANK_BYTES = 256 * _MIB  # Docker's default is 64 MB for all ranks together
TMP_LEAST_BYTES = 16 * _MIB  # the launcher's files

# --- a login ----------------------------------------------------------------------------------------------------------
FILES_LEAST = 4096  # open files: DataLoader workers pass tensors by file descriptor
FILES_GIVEN = 1048576  # proposed: the kernel's own default maximum (fs.nr_open)
PROCESSES_LEAST = 1024  # processes and threads of a user
SEGMENT_LEAST_BYTES = 64 << 30  # address space, data segment, file size: CUDA reserves tens of GB of addresses
MEMORY_A_RANK_BYTES = 512 * _MIB  # importing torch
PIDS_A_RANK = 64  # threads of a rank
MEMLOCK_LEAST_BYTES = 1 << 30  # pinned memory: NCCL pins some hundred MB a rank
CONNTRACK_FULL_SHARE = 0.9  # of the firewall's connection table
SOMAXCONN_GIVEN = 4096  # proposed queue of connections, at least

# --- networks ---------------------------------------------------------------------------------------------------------
NEIGHBOURS_GIVEN = 8192  # proposed entries of the kernel's neighbour table, at least
FASTER_TIMES = 2.0  # a shared network is called faster from this multiple of the chosen network's speed
FAST_ETHERNET_GBIT = 100  # a slower adapter is seldom meant for RoCE
CROWD = 3  # blocked hosts without a blocking rule: from here on the cause is a filter between them

# --- GPUs -------------------------------------------------------------------------------------------------------------
APP_MIB = 512.0  # a process with less GPU memory has only a context, or belongs to a desktop
BUSY_MIB = 1024.0  # memory without a visible process: the driver and a desktop stay below
BUSY_SHARE = 0.05  # the same, as a share of the GPU's memory
WINDOWS_BUSY_SHARE = 0.5  # the same under WSL2, which shows no process of Windows

# --- sizes of findings ------------------------------------------------------------------------------------------------
ALIKE_HOSTS = 16  # from here on, hosts with the same error share a finding: a person does not read more
OWNERS_SHOWN = 3  # owners of a GPU's memory
REASONS_SHOWN = 3  # reasons why links were not tried
ADDRESSES_SHOWN = 8  # addresses in a fix

# --- firewalls --------------------------------------------------------------------------------------------------------
CHAIN_DEPTH = 20  # nested jumps; nftables itself allows 16
CHAIN_JUMPS = 1000  # jumps of one walk: a dump that is not the kernel's may branch at every step
MULTIPORT_PORTS = 15  # ports of one iptables rule; a range counts twice
SOURCES = 8  # addresses of one rule: from here on a rule for the whole network replaces them
