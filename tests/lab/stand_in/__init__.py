"""A stand-in for torch on the hosts of a lab: tests/setup/lab-interpreter copies `torch` into an interpreter.

Processes, sessions, signals, sockets and exit codes are real and the same as with torch's launcher (test_stand_in.py
compares the two). Only the heavy import is missing, and all that needs a tensor.
"""
