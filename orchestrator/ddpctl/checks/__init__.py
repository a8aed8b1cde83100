"""The preflight checks: questions for the hosts, and verdicts on the answers. Pure: nothing here connects or runs.

- ``base`` declares ``Check`` (a question and a verdict), ``Target`` and ``Requirements`` (a host and a job, as the
  checks see them), and ``View`` (all answers of all hosts).
- ``judge`` chooses checks, collects their questions and turns answers into findings. ``report`` builds findings.
- A check lives in the file that its id names: ``login.kill`` in ``login``, ``host.*`` in ``host``, ``host_disk``,
  ``host_limits`` and ``host_slots``, ``job.*`` in ``job`` and ``job_imports``, ``fabric.*`` in ``fabric`` and
  ``fabric_speed``, ``ib.*`` in ``ib`` and ``ib_use`` (both read ``hca``), ``gpu.*`` in ``gpu/``, ``mesh.*`` in
  ``mesh/``.
- ``firewall/`` parses firewall rules, finds the rule that blocks a packet, and prints the command that opens it.
- ``catalogue`` lists every check. ``document`` writes docs/checks.md from it, which is the file that the package owns.

No threads, no processes. The stages ask the questions over the transport; the worker answers from its ``facts``
package. Thresholds and deadlines stand in ``limits``.
"""
