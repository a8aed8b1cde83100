"""Benchmarks: ratios in one run, on real hosts; never a timed test. `make bench` prints them."""
