"""Connections to hosts, and the calls of the worker that go over them. No other package opens a connection.

- ``base`` declares ``Transport`` (one host) and ``Fleet`` (many hosts). ``ssh``, ``local`` and ``fleet`` are theirs.
- The way to a host: ``ssh_config`` and ``ssh_words`` (OpenSSH's client configuration), ``asked_config`` (what only
  OpenSSH reads), ``route`` (the chain of hops), ``jumps`` (shared connections to jump hosts).
- The connection: ``dial`` (name, TCP), ``proxy`` (ProxyCommand), ``login`` and ``userauth`` (key exchange, login),
  ``known_hosts`` and ``certificates`` (host keys), ``identities``, ``agent`` and ``prompts`` (the user's keys, the
  ssh-agent, passwords), ``link`` (commands and tunnels over the connection).
- A call of the worker: ``bootstrap`` (start of the worker), ``conversation`` (request and frames), ``pipe`` (framing),
  ``watch`` (deadline and helper threads), ``answers`` and ``shapes/`` (validation of what a host sends).
- A plain command of the user: ``node`` (fabric) and ``exec_guard`` (a shell that ends the command with its connection).
- OpenSSH's ssh: ``openssh`` (its command lines, also for a shell of the user), ``master`` (connections that ssh holds
  because ddpctl's own client cannot open them), ``askpass`` (the questions of ssh).

Threads: a thread for each host of a ``Fleet.map`` (fleet.py), paramiko's reading thread for each connection, and during
a call a thread that sends the body or ends the input. Processes on this machine: ProxyCommands, commands of ``Match
exec``, the workers of local hosts, and the ssh processes of ``master``. The package reads the user's ssh_config, keys
and known_hosts without writing to them. It owns a temporary folder with the sockets of ``master``. Deadlines and sizes
stand in ``limits``.
"""

import sys

# paramiko imports invoke, a task runner, for `Match exec` in its own ssh_config reader, which ddpctl does not use. The
# import takes a tenth of the start of every command, so paramiko is loaded as if invoke were not installed.
if "invoke" not in sys.modules:
    sys.modules["invoke"] = None  # type: ignore[assignment]
    import paramiko as _paramiko  # noqa: F401

    del sys.modules["invoke"]
