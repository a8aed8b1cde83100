"""What every rank is doing, seen from outside while it runs or hangs, and what that says of the run.

rank/       runs inside the rank: opens torch's own debug server there
server.py   asks that server        flight.py  reads its answer: the collectives of a rank
stacks.py   Python stacks           frames.py  reads those: a rank's place in the user's code
process.py  /proc                   look.py    all of it, for every rank of this node
verdict.py  pure: which rank is odd, from the looks of all nodes
seen.py     pure: what a look says of a rank       sequences.py  pure: where the sequences of collectives part
words.py    pure: the words of a verdict
slow.py     pure: which ranks are slow, from the arrivals at the collectives; steps.py finds the steps in those
stall.py    pure: when to look closely            clocks.py  pure: how far the clocks of two hosts are apart
watch.py    in the supervisor: looks by itself, and says so when the run is stuck or a rank is slow
service.py  the doctor verb
"""
