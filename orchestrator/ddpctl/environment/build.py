"""Wheels for packages that have none: built once, kept, and then used like any other wheel.

A package is built on this machine first. A wheel without compiled code is used as it is. A wheel with compiled code
must fit the nodes' Python and C library, so it is built on a node of the kind that needs it. The build's own
requirements are locked here and sent along: a node needs no route to an index.

A node may be in the hands of an attacker. The wheel that it sends is opened and checked (wheelfile.py), and is used
only in its own cluster and for its own kind of node, whatever its file name says.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from ddpctl.environment.direct import (
    FileSource,
    as_provision_error,
    ask_holdings,
    hash_file,
    missing_files,
    send_missing,
)
from ddpctl.environment.limits import BUILD_ROUNDS, BUILD_S, BUILT_WHEEL_BYTES
from ddpctl.environment.lock import Lock, SourcePackage, Wheel, find_built
from ddpctl.environment.material import (
    EPOCH,
    BuildFailed,
    BuildSystem,
    build_here,
    build_system,
    content_id,
    last_lines,
    obtain_source,
)
from ddpctl.environment.platforms import Platform
from ddpctl.environment.resolve import LockRequest, resolve_one
from ddpctl.environment.wheelfile import BadWheel, check_wheel
from ddpctl.environment.wheelhouse import Wheelhouse
from ddpctl.errors import ConnectError, ProvisionError, RemoteError
from ddpctl.spec.event import Note, Progress, StageEnded, StageStarted, Tell
from ddpctl.spec.push import Traffic
from ddpctl.transport.base import Fleet, Frame, Transport
from ddpctl_worker.wire import contract

STAGE = "build"
# the kinds of kept builds: usable anywhere, built here, built on a node
_ANYWHERE, _HERE, _ON_A_NODE = "any", "here", "node"


@dataclass(frozen=True)
class _For:
    """The purpose of a build.

    ``hosts`` are nodes of the lock's kind. ``within`` names the packages whose build needs this package.
    """

    lock: Lock
    tool: Wheel
    hosts: Sequence[str]
    within: tuple[str, ...]


@dataclass
class Builder:
    """Builds the packages of locks that have no wheel.

    ``folder`` keeps records of the builds (builds of nodes separately for each ``cluster``). ``traffic`` counts the
    bytes that builds sent to nodes.
    """

    request: LockRequest
    backends: Sequence[str]
    fleet: Fleet
    tell: Tell
    wheelhouse: Wheelhouse
    folder: Path
    cluster: str
    locked: bool
    traffic: Traffic = field(default_factory=Traffic)

    def complete(self, lock: Lock, tool: Wheel, hosts: Sequence[str], within: tuple[str, ...] = ()) -> Lock:
        """Return the lock with a wheel for every package; see ``_For``.

        Raises:
            ProvisionError: a package cannot be built. It names package and host, with the end of the build's output.
        """
        aim = _For(lock, tool, hosts, within)
        if not lock.sources:
            return lock
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        built: list[Wheel] = []
        fresh: list[str] = []
        for number, source in enumerate(lock.sources):
            identity = content_id(source)
            with FileLock(self.folder / f"{_key(identity)}.lock"):  # another ddpctl may be building the same package
                wheel = self._remembered(identity, lock)
                if wheel is None:
                    if not fresh:
                        self.tell(StageStarted(STAGE, len(lock.sources), "packages"))
                    self.tell(Progress(STAGE, number, len(lock.sources), note=source.name))
                    wheel, where = self._build(source, identity, aim)
                    fresh.append(f"{wheel.filename} on {where or 'this machine'}")
            built.append(self._checked(source, wheel, lock))
        if fresh:
            self.tell(StageEnded(STAGE, True, f"{len(fresh)} built: {', '.join(fresh)}"))
        return lock.completed(built)

    def _checked(self, source: SourcePackage, wheel: Wheel, lock: Lock) -> Wheel:
        """Check that the wheel is of the locked package.

        With ``--locked`` it must also be the wheel of the lock, unless it is built from files of this machine.
        """
        if wheel.name != source.name or source.version not in ("", wheel.version):
            raise ProvisionError(f"{source} was built as {wheel.filename}", hint="pin another version of it")
        before = find_built(lock.text).get(wheel.name)
        if self.locked and not source.folder and before not in (None, wheel.sha256):
            raise ProvisionError(
                f"{wheel.filename} is not the build in the lock", hint="run ddpctl push without --locked"
            )
        return wheel

    # --- what was built before ----------------------------------------------------------------------------------------
    def _places(self, identity: str, lock: Lock) -> dict[str, Path]:
        """Return the records of a build, by kind.

        Compiled code may be built against torch, so its record names the torch.
        """
        words = [identity, lock.target.label, str(lock.version("torch"))]
        keys = {_ANYWHERE: [identity, _ANYWHERE], _HERE: words, _ON_A_NODE: [*words, self.cluster]}
        return {kind: self.folder / f"{_key(*key)}.json" for kind, key in keys.items()}

    def _remembered(self, identity: str, lock: Lock) -> Wheel | None:
        for place in self._places(identity, lock).values():
            try:
                known = json.loads(place.read_text(encoding="utf-8"))
                wheel = Wheel(**known)
            except (OSError, ValueError, TypeError):
                continue
            if Path(wheel.address).is_file() and _fits(wheel.filename, lock.target):
                return wheel
        return None

    def _remember(self, identity: str, lock: Lock, made: Path, kind: str) -> Wheel:
        name, version, _, _ = parse_wheel_filename(made.name)
        kept = self.wheelhouse.keep(made)
        wheel = Wheel(str(name), str(version), made.name, kept.sha256, str(kept.path), kept.size)
        place = self._places(identity, lock)[kind]
        part = place.with_name(f"{place.name}.{os.getpid()}.part")
        part.write_text(json.dumps(wheel.__dict__), encoding="utf-8")
        part.replace(place)
        return wheel

    # --- building -----------------------------------------------------------------------------------------------------
    def _build(self, source: SourcePackage, identity: str, aim: _For) -> tuple[Wheel, str | None]:
        """Return the wheel, and the host that built it (None: this machine)."""
        lock = aim.lock
        if source.name in aim.within:
            chain = " needs ".join([*aim.within[aim.within.index(source.name) :], source.name])
            raise ProvisionError(
                f"cannot be built, because it needs itself: {chain}", hint=f"add a wheel of {source.name} to find_links"
            )
        with tempfile.TemporaryDirectory(prefix="ddpctl-build-") as name:
            scratch = Path(name).resolve()
            what = obtain_source(source, self.wheelhouse, scratch)
            here: Path | None = None
            try:
                here = build_here(what, "wheel", scratch / "wheel", self.request.origins)
            except BuildFailed as failed:
                said = failed
            if here is not None and _pure(here.name) and _fits(here.name, lock.target):
                return self._remember(identity, lock, here, _ANYWHERE), None
            try:
                if what.is_dir():
                    what = build_here(what, "sdist", scratch / "sdist", self.request.origins)
            except BuildFailed as failed:
                raise self._failure(source, said.lines if here is None else failed.lines, None) from None
            try:
                made, host = self._on_a_node(source, what, aim)
            except ProvisionError as error:
                if here is None or not _fits(here.name, lock.target) or not _no_newer_than(lock.target):
                    raise
                self.tell(Note(f"{error}: the nodes get the wheel that was built on this machine", "warning"))
                return self._remember(identity, lock, here, _HERE), None
            return self._remember(identity, lock, made, _ON_A_NODE), host

    def _on_a_node(self, source: SourcePackage, sdist: Path, aim: _For) -> tuple[Path, str]:
        """Build on the first host that can be reached."""
        system = build_system(sdist)
        for _ in range(BUILD_ROUNDS):
            needed = self._needs(system, replace(aim, within=(*aim.within, source.name)))
            answer, host = self._ask(source, sdist, system, replace(aim, lock=needed))
            if isinstance(answer, Path):
                return answer, host
            system = replace(system, requires=(*system.requires, *answer))
        raise ProvisionError(f"{source} asks for different packages each time it is built", hint="pin another version")

    def _needs(self, system: BuildSystem, aim: _For) -> Lock:
        """Return a lock of the build's requirements for the node. torch among them has the version of the nodes."""
        if not system.requires:
            return Lock(aim.lock.target, (), "")
        update = {"packages": tuple(dict.fromkeys(system.requires)), "requirements": None, "project": None}
        request = replace(self.request, environment=self.request.environment.model_copy(update=update))
        torch = aim.lock.version("torch")
        pins = [f"torch=={torch.partition('+')[0]}"] if torch else []
        try:
            needed = resolve_one(request, aim.lock.target, self.backends, pins)
        except ProvisionError as error:
            raise ProvisionError(f"the build of {aim.within[-1]}: {error.message}", hint=error.hint) from error
        return self.complete(needed, aim.tool, aim.hosts, aim.within)

    def _ask(
        self, source: SourcePackage, sdist: Path, system: BuildSystem, needs: _For
    ) -> tuple[Path | list[str], str]:
        """Return the wheel from a node, or the packages that its backend asks for besides ``needs``; and the node."""
        files = list(self.wheelhouse.fetch([*needs.lock.wheels, needs.tool]).values())
        files.append(FileSource(sdist, hash_file(sdist), sdist.stat().st_size, sdist.name))
        request = {
            **needs.lock.request(needs.tool),
            "source": {"hash": files[-1].sha256, "name": sdist.name},
            "requires": list(system.requires),
            "backend": system.backend,
            "backend_path": list(system.path),
            "env": EPOCH,
        }
        out = sdist.parent / "from-node"

        def work(transport: Transport) -> Path | list[str]:
            known = ask_holdings(transport, [file.sha256 for file in files])
            missing = missing_files(known, files)
            send_missing(transport, files, known)
            sizes = [sum(file.size for file in some) for some in (files, missing)]
            self.traffic += Traffic(sizes[0], sizes[1], 0, sizes[0] - sizes[1])
            return _receive(transport, request, out, needs.lock.target)

        for host in needs.hosts:
            outcome = self.fleet.map(work, [host])
            if host in outcome.results:
                return outcome.results[host], host
            error = outcome.errors[host]
            if isinstance(error, RemoteError) and error.kind == contract.BUILD:
                raise self._failure(source, last_lines(error.message), host, error.hint)
            if not isinstance(error, ConnectError):
                raise as_provision_error(error, host, str(source)) if isinstance(error, RemoteError) else error
        raise error  # no host could be reached

    def _failure(
        self, source: SourcePackage, lines: Sequence[str], host: str | None, hint: str | None = None
    ) -> ProvisionError:
        """Return a one-line error, after reporting the end of the build's output."""
        self.tell(StageEnded(STAGE, False, f"{source} on {host or 'this machine'}"))
        for line in lines:
            self.tell(Note(f"  | {line}", "warning", host))
        cause = next((line for line in reversed(lines) if re.search("error", line, re.IGNORECASE)), lines[-1])
        return ProvisionError(
            f"{source} has no wheel and cannot be built{'' if host else ' on this machine'}: {cause.strip()[:300]}",
            hint=hint or "see the end of its build above; or choose a version that has a wheel",
            host=host,
        )


def _receive(transport: Transport, request: dict[str, Any], out: Path, target: Platform) -> Path | list[str]:
    """Run the verb and collect the wheel that arrives in pieces before its answer.

    The wheel must fit ``target`` and match its file name.
    """
    out.mkdir(exist_ok=True)
    part = out / "part"
    with part.open("wb") as file:

        def on_frame(frame: Frame) -> None:
            if file.tell() + len(frame.raw) > BUILT_WHEEL_BYTES:
                raise RemoteError(f"built a wheel of more than {BUILT_WHEEL_BYTES >> 30} GB", host=transport.host)
            file.write(frame.raw)

        answer = transport.call("build", request, on_frame=on_frame, timeout=BUILD_S)
    if "needs" in answer:
        return list(answer["needs"])
    name, sha256 = answer.get("name", ""), answer.get("hash")
    try:
        parse_wheel_filename(name)
    except InvalidWheelFilename:
        raise RemoteError(f"built {name!r}, which is not a wheel", host=transport.host) from None
    if "/" in name or hash_file(part) != sha256:
        raise RemoteError(f"{name} arrived damaged", hint="run the same command again", host=transport.host)
    if not _fits(name, target):
        raise RemoteError(f"built {name}, which does not fit {target.label}", host=transport.host)
    made = part.rename(out / name)
    try:
        check_wheel(made)
    except BadWheel as bad:
        hint = "build it by hand and put the wheel into a folder of find_links, if you trust it"
        raise RemoteError(f"built {name}, which {bad}", hint=hint, host=transport.host) from None
    return made


def _key(*words: str) -> str:
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def _pure(filename: str) -> bool:
    """Return whether the wheel has no compiled code."""
    return all(tag.platform == "any" and tag.abi == "none" for tag in parse_wheel_filename(filename)[3])


def _fits(filename: str, target: Platform) -> bool:
    return not parse_wheel_filename(filename)[3].isdisjoint(target.tags)


def _no_newer_than(target: Platform) -> bool:
    """Return whether code that is compiled here finds a C library on the target: this glibc is not newer."""
    version = re.match(r"2\.(\d+)", platform.libc_ver()[1])
    return sys.platform == "linux" and version is not None and int(version[1]) <= target.glibc
