"""The campaign that measures `ddpctl doctor`: programs that hang, and programs that only pause.

    python -m tests.hangs --seed 1 --number 60         the hangs (make hangs SEED=1 N=60)
    python -m tests.hangs --seed 1 --only spin fifo    these kinds alone
    python -m tests.hangs --healthy --number 100       programs with long pauses: no false alarm
    python -m tests.hangs --slow --number 30           one rank is slow: it is named, and no other rank
    python -m tests.hangs --balanced --number 50       no rank is slow
    python -m tests.hangs --programs --number 40       without the doctor: does each program fail as intended?

plan.py picks kind, world size, step and odd ranks: a pure function of the seed. kinds.py lists the hangs with what the
doctor must say of each, programs.py has their text, pauses.py the programs of the healthy runs. play.py and healthy.py
run them on hosts of a lab, look.py sees from outside where a rank stands, and judge.py says what was wrong. Pure are
plan.py, kinds.py, programs.py, pauses.py, judge.py and report.py. stragglers.py is the campaign of slow ranks.
"""
