"""How the suite runs.

- ``plugin``: the hooks of pytest, which tests/conftest.py loads.
- ``tiers``: which tests `make unit`, `make test` and `make test-all` run, and how long a test of each may take.
- ``schedule``, ``groups``: the longest tests start first; the recorded durations are in durations.json.
- ``turns``: how many tests that keep a core busy run at once, and which test runs alone.
- ``waiting``, ``speed``: the loop of every wait for a recorded fact, and how much longer it waits on a slow machine.
- ``leftovers``: a test that leaves a process behind fails.
- ``limits``: every number of these modules, with unit and reason.
"""
