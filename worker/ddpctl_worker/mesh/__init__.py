"""Tries the network between the nodes before a run: ports, speed, firewalls, and a rehearsal of the launcher.

ddpctl sends the requests of the preflight to every node at the same time:
- listener.py (listen): a thread that answers on any number of ports. dialer.py (dial): connects to all ports of the
  other nodes, and says of each port which answer came.
- speed.py: round trip and throughput to the nodes that answered; a thread per target.
- wire.py: the lines between dialer and listener, and the proof of the preflight's key.
- firewall.py (firewall): reads the rules of this node's firewall, and never changes them.
- rehearse.py (rehearse): runs the job's launcher with a small test of the process group, in a temporary folder.
- limits.py: every deadline, period and size.

The package keeps no file and no process after its answer.
"""
