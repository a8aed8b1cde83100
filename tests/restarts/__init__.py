"""A campaign of faults under runs with restarts: the next attempt comes, resumes from a checkpoint that was complete,
and trains on as if nothing had happened; or the run ends and says why. Never two attempts at once.

    python -m tests.restarts --seed 1 --number 20                      as root; make restarts SEED=1 N=20
    python -m tests.restarts --only power-worker,power-master          a plan of these kinds alone

plan.py says which fault hits which host. train.py is the training: its loss does not depend on how many ranks there
are, so every step has a single right value. play.py plays a round, sight.py looks at /proc and at the files of every
host, and judge.py says what is wrong. The output of ddpctl is compared with this value, never used in its place.
"""
