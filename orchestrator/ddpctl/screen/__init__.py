"""The live screen of ``ddpctl top``, built on textual. Only that command imports it, and only at a terminal.

``TopApp`` (app.py) has two views: ``Cluster`` shows all hosts, GPUs and runs. ``Inside`` shows a run's ranks and its
output. A view draws the last ``Overview``, with rows from render/top.py. ``Actions`` are the functions behind the keys:
cli/top.py supplies them, over the open connections. parts.py has a table, a page of text and a question.

The main thread draws and never waits for a host. Threads: ``top-look`` merges the hosts' pulses every two seconds.
``top-log`` reads the output of an opened run. Each action (doctor, stacks, kill) has its own thread. Results go to the
main thread through ``TopApp.hand_over``. This package has no files.
"""
