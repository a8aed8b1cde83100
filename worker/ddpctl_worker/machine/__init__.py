"""This machine: files, processes, sockets, control groups, clocks, and ddpctl's helper processes.

proc reads /proc. processes identifies and signals processes, finds the processes of a run, and proves that no process
is left. cgroup is the control group of a run. child starts a helper process of ddpctl and talks to it: one JSON object
a line over a pipe. tool runs a helper program that may hang.
net has addresses, TCP tables and listening sockets; tcpstate finds connections that wait for an acknowledgement.
acceptor takes connections in a thread, and strangers limits and counts connections that do not belong to a run.
answer_socket answers questions of this user over a Unix socket.
fs writes records durably, checks owners and takes locks. notes writes supervisor.log, syslog the log of the system.
clocks estimates the clock of another host. systemd asks systemd and logind. system has the clock and the
sockets, which the simulator replaces.
wakeup wakes a loop.

The package starts no process or thread by itself and owns no file.
"""
