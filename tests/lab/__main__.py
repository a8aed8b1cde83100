"""A lab by hand: python -m tests.lab up 3 | down FOLDER | enter FOLDER NODE [COMMAND] | list."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from tests.lab import claim
from tests.lab.lab import Lab, missing


def main() -> int:
    options = _parser().parse_args()
    if reason := missing():
        print(reason, file=sys.stderr)
        return 1
    code: int = options.act(options)
    return code


def up(options: argparse.Namespace) -> int:
    lab = Lab(options.count, fabric=options.fabric, jump=options.jump, detached=True)
    lab.home("first")
    lab.inventory(lab.folder / "inventory.yaml", ssh_config=str(lab.ssh_config), known_hosts=str(lab.known_hosts))
    print(lab.folder)
    print(f"try: ssh -F {lab.ssh_config} node0    inventory: {lab.folder}/inventory.yaml", file=sys.stderr)
    sys.stdout.flush()
    os._exit(0)  # the hosts live on: no finalizer of this process is to end them


def down(options: argparse.Namespace) -> int:
    claim.release_of_other(int(options.folder.name))
    return 0


def enter(options: argparse.Namespace) -> int:
    pid = json.loads((options.folder / "inits.json").read_text())[options.node]
    command = options.command or ["bash"]
    os.execvp("nsenter", ["nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "-p", "--wd=/root", "--", *command])


def show(_: argparse.Namespace) -> int:
    for folder in sorted(claim.ROOT.glob("[0-9]*")):
        if folder.is_dir():
            print(folder)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    verbs = parser.add_subparsers(required=True)
    start = verbs.add_parser("up", help="start hosts and print the lab's folder")
    start.add_argument("count", type=int)
    start.add_argument("--fabric", action="store_true", help="a second network among the hosts")
    start.add_argument("--jump", action="store_true", help="only node0 is reachable; the others are behind it")
    start.set_defaults(act=up)
    end = verbs.add_parser("down", help="end a lab and leave nothing")
    end.add_argument("folder", type=Path)
    end.set_defaults(act=down)
    inside = verbs.add_parser("enter", help="a shell or a command in a host, without SSH")
    inside.add_argument("folder", type=Path)
    inside.add_argument("node")
    inside.add_argument("command", nargs=argparse.REMAINDER)
    inside.set_defaults(act=enter)
    verbs.add_parser("list", help="the labs that run").set_defaults(act=show)
    return parser


if __name__ == "__main__":
    sys.exit(main())
