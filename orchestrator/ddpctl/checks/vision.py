"""torchvision beside its torch: only a job that imports it, itself or through another package, is harmed."""

from __future__ import annotations

from collections.abc import Iterable

from ddpctl.checks import torch
from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.imports import ask_modules, failures, is_error, modules, modules_question
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.source import OPTIONAL


def _ask(target: Target, want: Want) -> Iterable[Question]:
    return (*torch.ask_import(target, want), *ask_modules(target, want))


def _judge(view: View) -> Iterable[Finding]:
    installed = torch.versions(view)
    for host, value in torch.imports(view).items():
        error = value.get("torchvision_error")
        if not error:
            continue
        severity, what_for = _need(view, host, error)
        version = ((installed.get(host) or {}).get("torchvision") or {}).get("version") or "torchvision"
        yield Finding(
            "torch.vision",
            severity,
            f"torchvision {version} cannot be imported beside torch {value['torch']}: {error}{what_for}",
            host=host,
            fix=f"install the torchvision build that belongs to this torch, from the same index; {torch.MANAGED}",
            evidence=value,
        )


def _need(view: View, host: str, error: str) -> tuple[Severity, str]:
    """How bad it is, by what the script imports, and why."""
    imports = view.want.imports
    if imports is None:
        return Severity.WARNING, "; a job that imports it will fail"
    told = modules(view).get(host)
    for one, failed in failures(told, imports) if told else ():
        if is_error(failed, error):
            return Severity.ERROR, f"; {one.where} needs it: `{one.statement}`"
    for one in imports.statements:
        if one.module.split(".")[0] == "torchvision" and (one.guard == OPTIONAL or not told):
            return Severity.WARNING, f"; {one.where} may import it"
    asked = any(modules_question(target, view.want) for target in view.targets)
    if imports.unread or (asked and (not told or told["error"])):
        return Severity.WARNING, "; whether the script needs it was not seen"
    return Severity.INFO, "; harmless, nothing that the script imports needs it"


VISION = Check(
    "torch.vision",
    "torchvision fits its torch",
    _ask,
    _judge,
    Doc(
        cause="torchvision's compiled operators belong to one build of torch. A torchvision from the package index "
        "beside a CPU-only torch, or after torch alone was upgraded, cannot be imported.",
        symptom="RuntimeError: operator torchvision::nms does not exist",
        fix="Install torch and torchvision together, from the same index. A job that imports torchvision neither "
        "itself nor through another package (lightning, timm) is not harmed.",
    ),
)

CHECKS = (VISION,)
