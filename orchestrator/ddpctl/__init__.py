"""Run multi-node PyTorch DDP jobs on plain machines over SSH.

Packages, from top to bottom; a package imports only packages below it (tests/test_layers.py):

- cli: the commands. Reads arguments, asks the user.
- stages: the steps of a command (preflight, push, launch, follow, stop ...).
- environment: managed environments. checks: the preflight checks, without I/O.
- transport: SSH and the conversation with the worker on a node.
- screen, render: the live screen; tables, text and HTML.
- files: inventory and secrets files, the records of this machine. code: the code archive.
- spec: immutable values and pure rules.
- errors: the errors and their exit codes.

The worker (package ddpctl_worker) runs on the nodes. ddpctl imports its protocol and its pure rules only.
"""

__version__ = "0.1.0"
