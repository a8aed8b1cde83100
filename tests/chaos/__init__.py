"""The fault campaign: a seeded plan of faults on real hosts, and the conditions that must hold after each fault.

    python -m tests.chaos --seed 1 --number 200       the campaign (make chaos SEED=1 N=200)
    python -m tests.chaos --seed 1 --only 17          a single fault of that plan again
    python -m tests.chaos --healthy 100               healthy runs on an overloaded machine: no false alarm

plan.py says when each fault happens: a pure function of the seed. catalogue.py lists the faults; processes.py,
hosts.py, disks.py and commands.py inject and heal them. play.py plays a single round, sight.py looks at the hosts from
outside, by /proc, control groups and files, and judge.py names the violations.

Left out: a host whose clock jumps. Linux has time namespaces for the monotonic clocks only; the wall clock is the
machine's, and to set it would hurt everybody on it.
"""
