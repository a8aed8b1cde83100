"""The protocol between controller and worker.

    contract.py   the words that both sides share; the only module that the controller imports
    channel.py    the worker's end of the pipe: frames out, requests and bodies in
    boot.py       sent as text in the header; receives the worker's package on a node, and runs it

A worker is a process on the node, started over SSH for each connection. The package owns <base_dir>/worker/HASH/.
"""
