"""Managed environments: ddpctl resolves the packages, brings wheels to the nodes, and has them installed there.

The steps, in order:

- ``platforms``: the kind of each node (Python, machine, C library, driver), and the nodes that share a lock.
- ``origins`` and ``requirements``: the package sources and the requirement files of this machine.
- ``backend``: the build of torch. ``resolve``: a lock for each kind of node, made by uv, kept and reused. ``lock``: the
  lock as a value.
- ``build``, ``material`` and ``wheelfile``: a wheel for each package that has none, built here or on a node.
- ``wheelhouse``: downloads of the wheels. ``direct`` and ``spread``: files into the stores of the nodes, straight from
  the controller or from node to node.
- ``managed``: all steps, then the worker's ``install`` on every node. ``tools``: uv and py-spy for the nodes.

Threads: a thread for each download, and in a spread a thread for each node and a thread that starts the chain.
Processes: uv and git on this machine. Files: wheels and build records below the user's cache folder ``ddpctl``, and
locks below the state folder. Deadlines and sizes stand in ``limits``.
"""
