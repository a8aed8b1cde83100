"""A launcher's command line: ``torchrun ...``, ``python -m torch.distributed.launch ...``, ``deepspeed ...``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ddpctl.files.foreign.place import Word
from ddpctl.spec.draft import HostFault, Imported, host_entry
from ddpctl.spec.job import Elastic
from ddpctl.spec.limits import MAX_NODES
from ddpctl.spec.values import LAUNCHER_OWNED, is_env_name

FILE = "--"  # stands for the file in an error: the line follows it
_EXPECTED = "expected: torchrun ..., python -m torch.distributed.launch ... (or .run), or deepspeed ..."
_PYTHON = re.compile(r"(?:.*/)?python(\d(\.\d+)?)?")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.S)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW")
_COUNT = re.compile(r"(\d{1,5})(?::(\d{1,5}))?")
_MODULES = ("torch.distributed.launch", "torch.distributed.run")

FLAG, VALUE = False, True
# Option -> whether a value follows. Options that count have a branch in _Line._take. ddpctl decides the rest itself, or
# has no use for it.
_TORCH = {
    **dict.fromkeys(("nnodes", "nproc_per_node", "master_addr", "master_port", "rdzv_endpoint", "max_restarts"), VALUE),
    **dict.fromkeys(("node_rank", "rdzv_backend", "rdzv_id", "rdzv_conf", "local_addr", "role", "start_method"), VALUE),
    **dict.fromkeys(("log_dir", "redirects", "tee", "monitor_interval", "logs_specs", "local_ranks_filter"), VALUE),
    **dict.fromkeys(("numa_binding", "event_log_handler", "signals_to_handle", "duplicate_stdout_filters"), VALUE),
    **dict.fromkeys(("module", "no_python", "use_env", "standalone", "run_path", "virtual_local_rank"), FLAG),
}
_DEEPSPEED = {
    **dict.fromkeys(("hostfile", "include", "exclude", "num_nodes", "num_gpus", "num_accelerators"), VALUE),
    **dict.fromkeys(("master_addr", "master_port", "launcher", "launcher_args", "ssh_port", "node_rank"), VALUE),
    **dict.fromkeys(("min_elastic_nodes", "max_elastic_nodes", "autotuning", "venv_script", "bind_core_list"), VALUE),
    **dict.fromkeys(("module", "no_python", "no_local_rank", "no_ssh", "no_ssh_check", "force_multi"), FLAG),
    **dict.fromkeys(("save_pid", "enable_each_rank_log", "bind_cores_to_rank", "elastic_training"), FLAG),
}
_SHORT = {"m": "module", "r": "redirects", "t": "tee", "H": "hostfile", "i": "include", "e": "exclude"}
_UNSUPPORTED = {
    "no_python": "only Python programs are launched",
    "run_path": "write the script's path alone",
    "elastic_training": "set `elastic:` in the inventory",
}


def read_line(words: Sequence[str]) -> Imported:
    """Return the content of a launcher's command line: nodes, processes, main host, program.

    Raises:
        InventoryError: it is not a launcher's command line, or an option is not understood.
    """
    line = _Line(_placed(words))
    return line.read()


def _placed(words: Sequence[str]) -> list[Word]:
    """Return the words with their positions in a line behind ``--``."""
    found, column = [], 1
    for text in words:
        found.append(Word(text, FILE, 1, column))
        column += len(shlex.quote(text)) + 1
    return found


class _Line:
    """A command line that is being read."""

    def __init__(self, words: Sequence[Word]) -> None:
        self.left = list(words)
        self.end = Word("", FILE, 1, words[-1].column + len(words[-1].text) if words else 1)
        self.found: dict[str, Any] = {}
        self.notes: list[str] = []
        self.restarts: int | None = None

    def read(self) -> Imported:
        env = self._environment()
        kind, known = self._launcher()
        module = self._options(known)
        program = self._program(module)
        elastic = self._elastic()
        keys = {key: value for key, value in self.found.items() if key != "elastic"}
        return Imported(kind, **keys, **program, elastic=elastic, env=env, notes=tuple(self.notes))

    def _environment(self) -> Mapping[str, str]:
        """Take ``NAME=value`` before the command."""
        found: dict[str, str] = {}
        if self.left and self.left[0].text == "env":
            self.left.pop(0)
        while self.left and (match := _ASSIGNMENT.fullmatch(self.left[0].text)):
            self.left.pop(0)
            if match["name"] in LAUNCHER_OWNED or match["name"].startswith(("DDPCTL_", "PET_")):
                self.notes.append(f"{match['name']} is left out: ddpctl sets it")
            elif _SECRET.search(match["name"]):
                self.notes.append(f"{match['name']} is left out: write it into a file, and name that with env_file")
            elif is_env_name(match["name"]):
                found[match["name"]] = match["value"]
        return found

    def _launcher(self) -> tuple[str, Mapping[str, bool]]:
        if not self.left:
            raise self.end.fault("no launcher follows --", _EXPECTED)
        first = self.left.pop(0)
        name = first.text.rpartition("/")[2]
        if name in ("torchrun", "torch-run"):
            return "torchrun", _TORCH
        if name == "deepspeed":
            return "deepspeed", _DEEPSPEED
        if name.endswith(".py"):  # no launcher: SCRIPT ARGS, as for `up`
            self.left.insert(0, first)
            return "command", {}
        if _PYTHON.fullmatch(first.text):
            while self.left and self.left[0].text in ("-u", "-I", "-B", "-O"):
                self.left.pop(0)
            if len(self.left) > 1 and self.left[0].text == "-m" and self.left[1].text in _MODULES:
                self.left.pop(0)
                return f"python -m {self.left.pop(0).text}", _TORCH
            if self.left:
                raise self.left[0].fault("python does not start a launcher here", _EXPECTED)
        raise first.fault(f"{first.text[:60]!r} is no launcher that ddpctl reads", _EXPECTED)

    def _options(self, known: Mapping[str, bool]) -> bool:
        """Take the launcher's own options; return whether a module follows instead of a script."""
        module = False
        while self.left and self.left[0].text.startswith("-") and self.left[0].text != "--":
            word = self.left.pop(0)
            name, value = self._split(word, known)
            if name in _UNSUPPORTED:
                raise word.fault(f"{word.text} is not supported", _UNSUPPORTED[name])
            if known[name] and value is None:
                if not self.left:
                    raise self.end.fault(f"{word.text} needs a value", "add it, and the script")
                value = self.left.pop(0)
            if name == "module":
                module = True
            elif value is not None:
                self._take(name, value)
        if self.left and self.left[0].text == "--":
            self.left.pop(0)
        return module

    def _split(self, word: Word, known: Mapping[str, bool]) -> tuple[str, Word | None]:
        option, value = word.split("=")
        long = option.text.startswith("--")
        name = option.text.lstrip("-").replace("-", "_")
        name = name if long else _SHORT.get(name, "")
        if name not in known:
            raise option.fault(f"{option.text[:40]!r} is no option of this launcher", "options of the script follow it")
        if value is not None and not known[name]:
            raise value.fault(f"{option.text} takes no value")
        return name, value

    def _take(self, name: str, value: Word) -> None:
        found = self.found
        if name in ("node_rank", "rdzv_id") or (not value.text and name in ("master_addr", "rdzv_endpoint")):
            return  # differs on each node, or is the text of an unset variable
        if name in ("nnodes", "num_nodes"):
            self._nodes(name, value)
        elif name in ("nproc_per_node", "num_gpus", "num_accelerators"):
            if value.text not in ("gpu", "auto", "cpu", "xpu", "-1"):
                found["nproc"] = value.slots()
        elif name == "master_addr":
            found["master"] = _address(value)
        elif name == "rdzv_endpoint":
            self._endpoint(value)
        elif name == "master_port":
            found["port"] = value.number(name, 65535, least=0) or None
        elif name == "max_restarts":
            self.restarts = value.number(name, 1000, least=0)
        elif name in ("hostfile", "include", "exclude"):
            found[name] = value.text
        elif name == "rdzv_backend" and value.text not in ("static", "c10d"):
            self.notes.append(f"the rendezvous {value.text} is not taken over: see docs/elastic.md")
        elif name in ("ssh_port", "launcher_args"):
            self.notes.append(f"{name} is not taken over: write it into ~/.ssh/config")

    def _nodes(self, name: str, value: Word) -> None:
        match = _COUNT.fullmatch(value.text)
        if name == "num_nodes" and value.text == "-1":
            return
        least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= least <= most <= MAX_NODES:
            raise value.fault(f"{name} {value.text[:40]!r} is no number of nodes", "write --nnodes 2, or --nnodes 2:4")
        self.found["nodes"] = most
        if least != most:
            self.found["elastic"] = (least, most)

    def _endpoint(self, value: Word) -> None:
        host, port = value.text, None
        if match := re.fullmatch(r"(\[.*\]|[^:]*):(\d*)", value.text):
            host, port = match[1].strip("[]"), match[2]
        self.found["master"] = _address(Word(host, FILE, 1, value.column))
        if port:
            self.found["port"] = Word(port, FILE, 1, value.column + value.text.rfind(":") + 1).port()

    def _elastic(self) -> Elastic | None:
        if "elastic" not in self.found:
            return None
        least, most = self.found["elastic"]
        try:
            return Elastic(min_nodes=least, max_nodes=most, max_restarts=3 if self.restarts is None else self.restarts)
        except ValidationError:  # _nodes has checked both numbers
            raise self.end.fault("the numbers of nodes are not understood") from None

    def _program(self, module: bool) -> dict[str, Any]:
        if not self.left or not self.left[0].text:
            raise self.end.fault("no script follows the launcher's options", "add SCRIPT ARGS")
        first, *rest = self.left
        args = tuple(word.text for word in rest)
        if not module:
            return {"script": first.text, "args": args}
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", first.text):
            raise first.fault(f"{first.text[:60]!r} is not the name of a module", "a script goes without -m")
        return {"module": first.text, "args": args}


def _address(value: Word) -> str:
    """Return the host's address.

    Raises:
        InventoryError: a host cannot have this name.
    """
    try:
        host_entry(value.text)
    except HostFault as error:
        raise value.fault(str(error), "give the address of the first node") from None
    return value.text
