"""Restarts a run without the controller. Each host of a run with restarts has an agent, and the agents agree by Raft.

The agents agree on a document: the attempts so far, their hosts and ports, and how the run ended.
- step.py: the decisions of an agent, as a pure function. It calls the modules of the next four lines.
- raft.py: the leader, committed documents, and the leases of the hosts.
- leading.py, preparing.py: the leader's decisions about attempts. policy.py: whether and where a run continues.
- following.py: a host's part of an attempt. ending.py: the end of the run, and hosts that are cut off.
- state.py: the state of an agent, the events and the actions. limits.py: every deadline and size.

The rest carries the decisions out:
- agent.py: the process and its threads. part.py: starts and ends this host's part of an attempt.
- talk.py: questions between agents over TCP. links.py: checks of links, and free ports.
- resume.py: fetches the checkpoints before an attempt. begin.py: the verb that gives the agents their addresses.
- hostrecord.py: the files of the run on this host: the claim, the state, the ballot (vote and document), the end.

Threads of an agent: "tick" lets time pass; the main thread reads the disk, starts and stops. Each question to or from
another agent, each check of links and each preparation has a thread of its own.
"""
