"""Immutable values and pure rules: no I/O, no clock, no print. No threads, no processes, no files.

- Inventory: values (types of keys), ranges, host, job, notify, inventory; draft for ``ddpctl init``.
- Program text: source, imports, script, spawning, backend.
- Launch: plan (the values), planning (inventory and facts in, Plan out), plain, command, again (restart), resuming.
- Preflight: question and answer, finding, preflight, autofix, nvidia, interpreters, fabric, schedule, mesh, network.
- Runs: origin (identity of a job), names, outcome (state, cause, attempts), record (run.json), merge (reports of nodes
  in, RunStatus out), checkpoints, done (kill, save), removal, push, data (push --data).
- Output: event (what a stage reports), lines and flow (merge and fold the lines of all ranks), noise.
- Measurements: metrics, curves, gpuuse, top, bench, report, doctor.
- Answers of nodes: bounds (the types of their fields). An answer is validated straight into the values here.
- Helpers: fold (short names and messages for many hosts), times, limits (every size and threshold).

Other packages import these modules; spec imports only errors and the shared rules and contract of the worker.
"""
