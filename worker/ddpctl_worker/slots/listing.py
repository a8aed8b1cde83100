"""The verb ``slots``: the claims of all accounts on this host, and whether a run fits beside them."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, Optional, Set

from ddpctl_worker.machine import notes, proc
from ddpctl_worker.rules.slots import SlotEntry, choose_slots, count_held, place_in_line
from ddpctl_worker.slots import claims
from ddpctl_worker.slots.devices import CHOICES, Devices, GpusUnknown, find_devices
from ddpctl_worker.slots.folder import LockedClaim, UnusableFolder, read_claims, read_settings
from ddpctl_worker.slots.limits import SHOWN_CLAIMS, SHOWN_LETTERS
from ddpctl_worker.wire.channel import Channel

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


def slots(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Return the ``claims`` here, and with ``run`` (its ``slots``, ``nproc`` and ``env``) how the run fits.

    fits     the run gets its slots now; ``None`` without ``run``
    gpus     the slots are GPUs
    holders  with ``run``: [{"slots": numbers, "claim": place in ``claims``, or "foreign": a program}]
    limited  with ``run``: the "limit" of slots of an account, and the slots "held" by this one, if that is the reason
    trouble  why claims cannot be made or read here
    """
    run = request.get("run")
    answer: Dict[str, Any] = {
        "claims": [],
        "fits": None,
        "gpus": False,
        "holders": [],
        "limited": None,
        "trouble": None,
    }
    try:
        settings = read_settings()
        found = read_claims(settings.folder)
        entries = claims.entries_of(found)
        answer["claims"] = [
            _shown(request["host"], claim, entry, entries)
            for claim, entry in zip(found, entries)  # noqa: B905
        ]
        if run is not None:
            answer.update(_fit(run, entries, settings.limit))
    except (UnusableFolder, GpusUnknown) as why:
        answer.update(trouble=str(why), fits=None if run is None else True)
    return answer


def read_other_claims(host: str) -> List[Dict[str, Any]]:
    """Return the claims of other accounts on this host, as the verb ``slots`` shows them.

    Raises:
        UnusableFolder, WorkerError: as for ``SlotsFolder``.
    """
    found = read_claims(read_settings().folder)
    entries = claims.entries_of(found)
    others = [pair for pair in zip(found, entries) if pair[0].uid != os.geteuid()]  # noqa: B905
    return [_shown(host, claim, entry, entries) for claim, entry in others[-SHOWN_CLAIMS:]]


def _fit(run: Mapping[str, Any], entries: List[SlotEntry], limit: Optional[int]) -> Dict[str, Any]:
    wish = claims.wish_of(run)
    if wish is None:
        return {"fits": True}
    devices = find_devices(wish.each, wish.nodes)
    env = {**_login_choices(), **run["env"]}
    own = claims.want(devices, wish, env, claims.new_entry({"run": claims.NEW_CLAIM, "host": ""}))
    chosen = choose_slots(own, entries, {foreign.slot for foreign in devices.foreign}, limit)
    fits = bool(chosen) or not own.want
    if fits:
        return {"fits": True}
    held = count_held(own.account, entries)
    limited = {"limit": limit, "held": held} if limit is not None and own.want + held > limit else None
    found = {"fits": False, "gpus": devices.are_gpus, "limited": limited}
    return dict(found, holders=[] if limited else _holders(own, devices, entries))


def _login_choices() -> Dict[str, str]:
    login = proc.variables(os.getpid())
    return {name: login[name] for name in CHOICES if name in login}


def _holders(own: SlotEntry, devices: Devices, entries: List[SlotEntry]) -> List[Dict[str, Any]]:
    """Return the holders of the slots that the run may take, and the runs that wait before it."""
    numbers = {slot.id: slot.number for slot in devices.slots}
    found: List[Dict[str, Any]] = []
    held: Set[str] = set()
    for place, entry in enumerate(entries):
        mine = sorted(numbers[slot] for slot in entry.held if slot in own.pool)
        held.update(entry.held)
        if mine or (not entry.held and set(entry.pool) & set(own.pool)):
            found.append({"slots": mine, "claim": place, "foreign": None})
    for program in devices.foreign:
        if program.slot in own.pool and program.slot not in held:
            shown = {"pid": program.pid, "account": program.account, "command": _text(program.command)}
            found.append({"slots": [numbers[program.slot]], "claim": None, "foreign": shown})
    return found


def _shown(host: str, claim: LockedClaim, entry: SlotEntry, entries: List[SlotEntry]) -> Dict[str, Any]:
    """Return a claim as ddpctl gets it. Another account may have written anything into it: see ``_text``."""
    value = claim.value
    origin = value.get("origin")
    origin = origin if isinstance(origin, dict) else {}
    hosts = value.get("hosts")
    return {
        **{key: _name(value.get(key)) for key in ("run", "job", "cluster", "project")},
        "host": host,
        "hosts": [_name(name) for name in hosts[:10_000]] if isinstance(hosts, list) else [],
        "account": entry.account,
        "mine": claim.uid == os.geteuid(),
        "origin": {key: _text(origin.get(key)) for key in ("account", "machine", "folder")},
        "age_s": max(0.0, round(notes.boottime() - entry.since, 1)),
        "slots": sorted(slot.number for slot in claims.slots_of(value)),
        "want": entry.want,
        "place": place_in_line(entry, entries),
    }


def _name(value: Any) -> str:
    return value if isinstance(value, str) and _NAME.match(value) else "unknown"


def _text(value: Any) -> str:
    """Return a text without control characters, which could change a terminal."""
    letters = value[:SHOWN_LETTERS] if isinstance(value, str) else ""
    return "".join(letter if letter.isprintable() else "?" for letter in letters)
