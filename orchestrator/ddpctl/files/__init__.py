"""The local files: the inventory, secrets, the files of other tools, and this machine's records of its runs.

No other package reads or writes these files.

- Reading an inventory: ``tree`` (strict YAML with positions), ``extends`` (jobs that extend a job), ``document``
  (positions of faults, ``--set``), ``program`` (``-- SCRIPT ARGS``), ``resolve`` (absolute paths), ``inventory`` (all
  steps).
- ``env_file`` reads a job's secrets. ``glance`` reads names for completion. ``scripts`` and ``drafts`` serve
  ``ddpctl init``, and ``foreign/`` reads hostfiles, accelerate's configuration and launchers'
  command lines.
- ``records`` and ``positions`` keep hints about runs below ``$XDG_STATE_HOME/ddpctl/controller``: run.json, end.json
  and positions of each run, the last run of each job, clean preflights. The nodes hold the truth.

No threads, no processes. Periods and sizes stand in ``limits``.
"""
