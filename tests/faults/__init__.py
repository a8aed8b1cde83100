"""Faults put into the product on purpose, and whether `make test` notices each.

- ``catalogue``: the faults, as edits of the source, and the tests of `make test` that must fail.
- ``copy``: a copy of the checkout with a single fault, and an environment whose `ddpctl` is that copy.
- ``python -m tests.faults`` prints a table: fault, tests that failed, seconds.
"""
