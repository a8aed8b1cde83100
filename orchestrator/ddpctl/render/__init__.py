"""Turns spec values into text, terminal output and HTML pages. Values in, renderables of rich or strings out.

- Every text of a node passes ``clean`` on its way to a terminal (``console``) or a page (``page``).
- Runs: ``status``, ``report`` and ``report_page``, ``top``, ``lines`` (output of ranks), ``checkpoints``, ``doctor``.
- Preflight: ``groups`` (equal findings together), ``preflight`` (terminal), ``html`` (page).
- The rest: ``bench``, ``chart`` (SVG by pygal), ``exposition`` (Prometheus), ``push``, ``ran``, ``errors``, and
  ``inventory`` (the file of `ddpctl init`).
- ``progress`` alone has state: it draws the events of stages on the terminal, from any thread.

No processes, no files.
"""
