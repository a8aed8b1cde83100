"""Nodes that garble their messages: real answers of the real worker, changed at random, given to the real stages.

    python -m tests.garble --seed 1 --number 5000

Three hosts. What the worker says was recorded on this machine (recording.py); node `b` says it garbled (mutate.py),
over the real conversation and an in-memory pipe (replay.py). Whatever comes: nothing hangs, nothing but an error of
ours is raised, `a` and `c` are served as if `b` were well (scenes.py), and no character of `b` steers the terminal.
"""
