"""What the job uses of its nodes: only that is judged."""

from __future__ import annotations

from ddpctl.checks.base import View


def uses_gloo(view: View) -> bool:
    """The backend that the job will have: its own word, else NCCL where a node has a GPU."""
    if view.want.backend:
        return view.want.backend == "gloo"
    return not any(
        answer.value.get("gpus")
        for host in view.answers.values()
        for key, answer in host.items()
        if answer.ok and key.partition(":")[0] == "network"
    )
