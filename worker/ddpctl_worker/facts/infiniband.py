"""InfiniBand and RoCE ports, from sysfs."""

from __future__ import annotations

import glob
import os
from typing import Any, Dict, List

from ddpctl_worker.facts import read_text

_MOST_GIDS = 32
_ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"


def infiniband(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Every port's own words (``state`` is ``4: ACTIVE`` where it works) and its GID table."""
    ports = []
    for folder in sorted(glob.glob("/sys/class/infiniband/*/ports/*")):
        device = folder.split("/")[4]
        ports.append(
            {
                "device": device,
                "port": int(os.path.basename(folder)),
                "state": read_text(folder + "/state").strip(),
                "phys_state": read_text(folder + "/phys_state").strip(),
                "rate": read_text(folder + "/rate").strip(),
                "link_layer": read_text(folder + "/link_layer").strip(),
                "gids": gids(folder),
            }
        )
    return {
        "ports": ports,
        "verbs": sorted(os.path.basename(path) for path in glob.glob("/dev/infiniband/uverbs*")),
    }


def gids(folder: str) -> List[Dict[str, Any]]:
    """The entries in use: index, address, type (``RoCE v2``, ``IB/RoCE v1``) and interface."""
    found = []
    for path in sorted(glob.glob(folder + "/gids/*"), key=lambda name: int(os.path.basename(name)))[:_MOST_GIDS]:
        index = os.path.basename(path)
        gid = read_text(path).strip()
        if gid and gid != _ZERO:
            found.append(
                {
                    "index": int(index),
                    "gid": gid,
                    "type": read_text(folder + "/gid_attrs/types/" + index).strip(),
                    "interface": read_text(folder + "/gid_attrs/ndevs/" + index).strip(),
                }
            )
    return found
