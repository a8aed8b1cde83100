"""Every deadline, period and size of the agents. Times are seconds.

From the loss of a host to the end of its ranks: the leader's authority of AUTHORITY_S, a grace of GRACE_S that lets
another leader be elected, and KILL_S to end the processes. That sum is END_S. The next attempt waits for it, and for no
clock of another host.
"""

from __future__ import annotations

# --- the agreement (raft.py)
ELECTION_S = 8.0  # who has heard the leader votes for nobody else for so long
AUTHORITY_S = 7.5  # less than ELECTION_S: two clocks need not run equally fast
GRACE_S = 6.0  # long enough to elect another leader: its loss alone stops no job
KILL_S = 3.0  # from the end of a lease until the processes are gone: supervisor, guardian and the kill itself
END_S = AUTHORITY_S + GRACE_S + KILL_S
TURN_S = 0.6  # a host stands for election so much later than the one before it in the list
LAST_TURN_S = 6.0  # and no host later than this
CHANCE_S = 1.5  # what chance adds, at least: two candidates of one moment take each other's votes
CHANCE_A_HOST_S = 0.1  # the same for each host of a large run: the first candidate needs time to win
AGAIN_S = 2.0  # a candidate that was not elected tries again

# --- questions
POLL_S = 1.0  # between two questions to the leader
MOST_POLL_S = 2.0  # the same in a large run; a lease lasts for some of them
HOSTS_A_POLL = 64  # with more hosts than this the leader is asked less often
LOST_S = 3.0  # a leader that has not answered for so long is looked for elsewhere
PATIENT_S, PATIENT_POLL_S = 600.0, 10.0  # a host that has been alone for so long asks less often
STILL_S = 30.0  # an agent whose disk has not answered for so long does not lead
NEAR_S = 4.0  # a host that has not asked the leader for so long is not near
NEAR_POLLS = 3  # the same in questions, for a large run
TOGETHER_S = 10.0  # a leader that a majority has asked within this is not cut off
ANSWERING_S = 25.0  # a host that has answered within this is cut off together with this one

# --- attempts (leading.py, following.py)
ROOM_S = 2.0  # a lease that ends sooner is not worth starting anything for
CALL_OFF_S = 5.0  # a part of an attempt that is over elsewhere ends by itself, or is stopped after this
STUCK_S = 90.0  # beyond the job's grace: a host whose part does not end is lost, even if it answers
FEW_S = 20.0  # for so long it is waited for hosts, where there are too few
AGAIN_FEW_S = 1.0  # between two looks for them
SEARCH_S = 60.0  # for the answers about links and ports; a full disk may have lost them
HANGS_S = 120.0  # a preparation without progress; a large one may take hours
TELL_S = 20.0  # the same, when the status says so
PREPARED_S = 10.0  # a preparation that is over by then is not spoken of
MOST_ATTEMPTS = 20  # that the document has; with the oldest of them gone, their numbers still count
MOST_NAMED = 8  # hosts, in a sentence that every host is told with each change

# --- the end of a run (ending.py)
WORD_S = 1.0  # for the others to take the word of a kill
FAREWELL_S = 10.0  # how long the leader waits for the others to hear how the run ended
ALONE_S = 86400.0  # without the others for so long, a host ends the run; until then they may go on
TWO_ALONE_S = 30.0  # the same of two hosts, where neither can go on alone
CUT_OFF_S = 30.0  # without the others for so long, the status says so
TELL_ALONE_S = 600.0  # ... and somebody is notified

# --- after an attempt (policy.py)
FIRST_PAUSE_S, MOST_PAUSE_S = 1.0, 60.0  # before the next attempt; doubled after each attempt that did not last
STEADY_S = 600.0  # an attempt that ran for so long had got over whatever failed before

# --- checkpoints before an attempt (resume.py)
TRIES, PAUSE_S = 3, 1.0  # to reach a host of the attempt
SILENT_S = 30.0  # the first host may be busy; if it is lost, the attempt is called off

# --- the agent's process (agent.py, links.py)
LOOK_S = 0.2  # between two looks at the disk
LEAST_PAUSE_S = 0.05  # between two ticks
BEGIN_S = 120.0  # how long after its start it waits to hear where the others are
CHECK_S = 3.0  # one look from one host at another
ANSWER_S = 2.0  # for the answer about it, beyond the look itself
ROUNDS = 2  # of looks at all links; one may be bad luck
PARTNERS = 2  # a host is convicted by two others or more
