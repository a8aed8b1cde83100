"""The faults. Each breaks a promise of the README in a way that a careless change could."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """In ``file``, ``before`` stands once and becomes ``after``."""

    file: str
    before: str
    after: str


@dataclass(frozen=True)
class Fault:
    """The broken code, and the tests of `make test` that must fail because of it."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


WORKER = "worker/ddpctl_worker"
DDPCTL = "orchestrator/ddpctl"

FAULTS = (
    Fault(
        "the supervisor does not reap",
        (
            Edit(
                f"{WORKER}/run/stopper.py",
                "    ended: Dict[int, int] = {}\n    while True:",
                "    ended: Dict[int, int] = {}\n    while False:",
            ),
        ),
        ("tests/worker/run/test_start.py::test_environment", "tests/worker/run/test_kill.py::test_stop_leaves_nothing"),
    ),
    Fault(
        "kill misses a child with a session and an environment of its own",
        (
            Edit(
                f"{WORKER}/machine/processes.py",
                "return {pid: everyone[pid] for pid in found if everyone[pid].alive}",
                "return {pid: everyone[pid] for pid in marked if everyone[pid].alive}",
            ),
            Edit(
                f"{WORKER}/machine/processes.py",
                "marked = find_carriers(cookie, everyone.keys() - found)",
                "marked = find_carriers(cookie, everyone.keys())",
            ),
            Edit(
                f"{WORKER}/machine/processes.py",
                "        if self._group is not None and not self._group.empty():\n            return False\n",
                "        return True\n",
            ),
            Edit(
                f"{WORKER}/machine/processes.py",
                "    def kill(self) -> None:\n",
                "    def kill(self) -> None:\n        return\n",
            ),
        ),
        ("tests/e2e/test_kill.py::test_who_does_not_obey_is_forced", "tests/worker/run/test_kill.py"),
    ),
    Fault(
        "the gang forgets a member",
        (
            Edit(
                f"{WORKER}/gang/hub.py",
                "        for line in list(self._lines):\n            self._tell_verdict(line)",
                "        for line in list(self._lines)[1:]:\n            self._tell_verdict(line)",
            ),
        ),
        (
            "tests/worker/gang/test_gang.py",
            "tests/e2e/test_failures.py::test_one_rank_fails_and_the_others_wait_for_ever",
        ),
    ),
    Fault(
        "the lease is not renewed",
        (Edit(f"{WORKER}/run/lease.py", "    for fd in fds:\n        with", "    for fd in fds[:0]:\n        with"),),
        ("tests/worker/run/test_lease.py",),
    ),
    Fault(
        "tail loses the last line",
        (
            Edit(
                f"{WORKER}/run/drain.py",
                "                self._record(source, source.splitter.flush(final=True))",
                "                source.splitter.flush(final=True)",
            ),
            Edit(
                f"{WORKER}/run/drain.py",
                "        source.open = False\n        self._selector.unregister(source.fd)\n"
                "        self._record(source, source.splitter.flush(final=True))",
                "        source.open = False\n        self._selector.unregister(source.fd)\n"
                "        source.splitter.flush(final=True)",
            ),
        ),
        ("tests/worker/run/test_drain.py",),
    ),
    Fault(
        "preflight passes a blocked port",
        (Edit(f"{DDPCTL}/checks/mesh/faults.py", "BLOCKED = FILTERED | {ERROR}", "BLOCKED = {ERROR}"),),
        ("tests/lab_preflight/test_ports.py::test_master_port_blocked_for_all",),
    ),
    Fault(
        "a changed host key is not refused",
        (
            Edit(
                f"{DDPCTL}/transport/login.py",
                "    if verdict is Verdict.CHANGED:\n",
                "    if verdict is Verdict.CHANGED:\n        return\n",
            ),
        ),
        ("tests/e2e/test_hosts.py",),
    ),
    Fault(
        "a checkpoint without one of its shards is complete",
        (
            Edit(
                f"{WORKER}/rules/complete.py",
                "    missing |= {path for path in references if path not in known}\n",
                "",
            ),
        ),
        ("tests/worker/rules/test_unite.py::test_without_another_hosts_shard_it_is_not_complete",),
    ),
    Fault(
        "the exit record is written twice",
        (Edit(f"{WORKER}/machine/fs.py", "        os.link(draft, path)\n", "        os.rename(draft, path)\n"),),
        ("tests/worker/record/test_records.py::test_the_exit_record_is_written_once",),
    ),
    Fault(
        "a secret is in argv",
        (
            Edit(
                f"{WORKER}/run/start.py",
                '    argv = launcher.expand_home(request["argv"])',
                '    argv = [*launcher.expand_home(request["argv"]), *(request.get("secrets") or {}).values()]',
            ),
        ),
        (
            "tests/worker/run/test_start.py::test_a_secret_is_written_nowhere",
            "tests/e2e/test_values.py::test_a_secret_reaches_the_process_and_nobody_else",
        ),
    ),
)
