"""Every deadline, period and size of the agents. Times are seconds.

From the loss of a host to the end of its ranks: the leader's authority of AUTHORITY_S, a grace of GRACE_S that lets
another leader be elected, and KILL_S to end the processes. That sum is END_S. The next attempt waits for it, and does
not depend on the clock of another host.
"""

from __future__ import annotations

from ddpctl_worker.machine.limits import IDLE_S

# --- elections and leases (raft.py)
ELECTION_S = 8.0  # a host that has heard the leader votes for no other host within this time
AUTHORITY_S = 7.5  # less than ELECTION_S: two clocks may run at slightly different speeds
GRACE_S = 6.0  # enough to elect another leader, so that the loss of the leader alone stops no job
KILL_S = 3.0  # from the end of a lease until the processes are gone: supervisor, guardian and the kill itself
END_S = AUTHORITY_S + GRACE_S + KILL_S
TURN_S = 0.6  # each host stands for election this much later than the host before it in the list
LAST_TURN_S = 6.0  # the latest turn, in a long list
CHANCE_S = 1.5  # the least random delay: two candidates at the same moment would split the votes
CHANCE_A_HOST_S = 0.1  # random delay per host of a large run: the first candidate needs time to win
AGAIN_S = 2.0  # until a candidate that was not elected tries again

# --- questions between the agents (talk.py, raft.py, step.py)
POLL_S = 1.0  # between two questions to the leader
MOST_POLL_S = 2.0  # the same in a large run; a lease outlasts several questions
HOSTS_A_POLL = 64  # a run with more hosts than this asks its leader less often
LOST_S = 3.0  # a leader that has not answered for this long is looked for on other hosts
PATIENT_S, PATIENT_POLL_S = 600.0, 10.0  # a host that has been alone for this long, and its longer period
STILL_S = 30.0  # an agent whose disk has not answered for this long does not lead
REACHABLE_S = 4.0  # a host that has not asked the leader for this long is not reachable
REACHABLE_POLLS = 3  # the same in questions, for a large run
TOGETHER_S = 10.0  # a leader that a majority has asked within this time is not cut off
ANSWERING_S = 25.0  # a host that has answered within this time is cut off together with this host
ASK_S = 2.0  # until an answer has to be there
SERVE_S = 5.0  # until the asking host has read an answer
KEPT_S = IDLE_S / 2  # an idle connection is used again; the other side closes it after IDLE_S
MOST_OPEN = 64  # open connections to other agents
PORT_TRIES = 50  # ports of the usual range on which an agent tries to listen, before the kernel chooses a port
AT_ONCE = 64  # hosts that are asked at the same time

# --- the line (waiter.py)
LINE_LOOK_S = 0.5  # between two looks at the slots of this host, and at the other hosts
LINE_POLL_S = 3.0  # for the answers of the other waiters
LINE_GONE_S = 120.0  # a host that has not answered for this long has lost its place: it was rebooted, or is cut off
LINE_REFUSED_S = 15.0  # the same where the host refuses the connection: its waiter was killed
LINE_BEGIN_S = 90.0  # from the start on a host until ddpctl has given it the addresses of the other hosts
LINE_QUICK_S = 10.0  # a run is in line, or has started, within this time
LINE_STARTED_S = 60.0  # after the start here, until every other host has started
MOST_NAMED = 3  # hosts in a note
LINE_NEWS_S = 10.0  # after the end here: the other hosts ask within this time

# --- attempts (leading.py, following.py, preparing.py, part.py)
ROOM_S = 2.0  # a lease that ends sooner is too short to start anything
CALL_OFF_S = 5.0  # a part whose attempt is over elsewhere may end by itself; it is stopped after this
STUCK_S = 90.0  # beyond the job's grace: a host whose part does not end is lost, even if it answers
FEW_S = 20.0  # the wait for more hosts, if there are too few
AGAIN_FEW_S = 1.0  # between two searches for more hosts
SEARCH_S = 60.0  # for the answers about links and ports; a full disk may have lost them
HANGS_S = 120.0  # a preparation without progress; a preparation with progress may take hours
STATUS_S = 20.0  # a preparation without progress that the status mentions
PREPARED_S = 10.0  # a shorter preparation is not mentioned
MOST_ATTEMPTS = 20  # in the document; the numbers of older attempts still count
MOST_NAMED = 8  # hosts in a sentence of the document, which every host gets with each change
MOST_TRACEBACK = 4 << 10  # letters of a cause's traceback that go to the other hosts

# --- the end of a run (ending.py)
KILL_NEWS_S = 1.0  # for the other hosts to learn of a kill
FAREWELL_S = 10.0  # how long the leader waits until the other hosts know how the run ended
ALONE_S = 86400.0  # a host that is cut off for this long ends the run; the other hosts may continue meanwhile
TWO_ALONE_S = 30.0  # the same in a run of two hosts, where neither can continue alone
CUT_OFF_S = 30.0  # a host that is cut off for this long says so in its status
NOTIFY_ALONE_S = 600.0  # a host that is cut off for this long notifies the user

# --- after an attempt (policy.py)
FIRST_PAUSE_S, MOST_PAUSE_S = 1.0, 60.0  # before the next attempt; doubled after each attempt that did not last
STEADY_S = 600.0  # an attempt that ran for this long had overcome the earlier failure

# --- checkpoints before an attempt (resume.py)
TRIES, PAUSE_S = 3, 1.0  # to reach a host of the attempt
SILENT_S = 30.0  # the first host may be busy; if it is lost, the attempt is called off

# --- the agent's process (agent.py, begin.py, links.py)
DISK_LOOK_S = 0.2  # between two looks at the disk
LEAST_PAUSE_S = 0.05  # between two ticks
BEGIN_LOOK_S = 0.05  # between two looks at the disk before the first attempt has started
BEGIN_S = 120.0  # from an agent's start until it knows the addresses of the other agents
FIND_S = 60.0  # from the begin verb until the first attempt has started
CONNECT_S = 3.0  # a trial connection to an agent that was not found
MOST_UNREACHED = 4  # hosts in the message about these trials
CHECK_S = 3.0  # a check of the link to a host
ANSWER_S = 2.0  # for the answer about it, beyond the check itself
ROUNDS = 2  # checks of all links; a single failure may be bad luck
PARTNERS = 2  # a host is convicted if its links to this many hosts are cut
