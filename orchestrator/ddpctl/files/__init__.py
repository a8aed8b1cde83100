"""The only reader and writer of local files: the inventory, secrets, and what this machine remembers of its runs."""

from ddpctl.files.env_file import read_env_file
from ddpctl.files.inventory import find_inventory, load_inventory, load_script
from ddpctl.files.positions import Positions, load_positions, save_positions
from ddpctl.files.program import inspect_script, script_file
from ddpctl.files.records import last_end, last_run, save_end, save_run, state_dir

__all__ = [
    "Positions",
    "find_inventory",
    "inspect_script",
    "last_end",
    "last_run",
    "load_inventory",
    "load_positions",
    "load_script",
    "read_env_file",
    "save_end",
    "save_positions",
    "save_run",
    "script_file",
    "state_dir",
]
