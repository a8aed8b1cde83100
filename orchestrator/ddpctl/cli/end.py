"""How a followed run's end is told, and the exit code that goes with it."""

from __future__ import annotations

from ddpctl.cli import session
from ddpctl.errors import JobFailed
from ddpctl.render.console import stderr_console
from ddpctl.render.status import cause_line, status_view
from ddpctl.spec.outcome import RunStatus
from ddpctl_worker import contract


def conclude(run: RunStatus, *, as_json: bool = False) -> int:
    """Print how the run ended; 0 when it succeeded.

    Raises:
        JobFailed: it failed, was killed, or was lost.
    """
    if as_json:
        session.print_json(run.to_json())
    if run.state == contract.SUCCEEDED:
        if not as_json:
            stderr_console().print(_success(run), style="green")
        return 0
    if not as_json:
        stderr_console().print(status_view(run))
    why = cause_line(run.cause) if run.cause else "no node recorded a cause"
    word = run.state if run.terminal else contract.FAILED  # a host that is out of reach keeps the state open
    raise JobFailed(f"{run.job} {word}: {why}", hint=f"the output is kept: ddpctl tail {run.run} -n 100")


def _success(run: RunStatus) -> str:
    return f"{run.job} succeeded on {len(run.nodes)} nodes, world size {run.world_size}  (run {run.run})"
