"""A plan as a person reads it: for every node the environment and the command line that would run there."""

from __future__ import annotations

import shlex

from rich.console import Group, RenderableType
from rich.text import Text

from ddpctl.spec.command import REDACTED, display
from ddpctl.spec.plan import NodePlan, Plan


def plan_view(plan: Plan) -> RenderableType:
    """The whole plan; nothing was contacted to make it."""
    head = Text(f"{plan.job}  run {plan.run}  cluster {plan.cluster}  master {plan.master} ({plan.master_addr})")
    if plan.world_size is not None:
        head.append(f"  world size {plan.world_size}")
    parts: list[RenderableType] = [head]
    if plan.code is not None:
        commit = f", commit {plan.code.git_commit[:12]}" if plan.code.git_commit else ""
        dirty = " (dirty)" if plan.code.dirty else ""
        parts.append(Text(f"code  {plan.code.sha256[:12]}, {plan.code.size} bytes{commit}{dirty}"))
    parts += [node_view(node) for node in plan.nodes]
    if plan.open_questions:
        parts.append(Text("asked from the nodes at launch:", style="yellow"))
        parts += [Text(f"  {question}") for question in plan.open_questions]
    return Group(*parts)


def node_view(node: NodePlan) -> RenderableType:
    """One node: host, folder, environment, command line."""
    lines = [Text(f"\n{node.host}  node rank {node.node_rank}", style="bold"), Text(f"  cd {node.command.cwd}")]
    for name, value in sorted(node.command.env.items()):
        lines.append(Text(f"  {name}={shlex.quote(value)}"))
    lines += [Text(f"  {name}={REDACTED}") for name in node.secret_names]
    lines.append(Text(f"  {display(node.command.argv)}"))
    return Group(*lines)
