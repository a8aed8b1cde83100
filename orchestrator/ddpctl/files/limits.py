"""Every period and size of the local files, with its unit and its reason.

``_S`` are seconds, ``_BYTES`` bytes; all other values are counts.
"""

from __future__ import annotations

# --- reading ----------------------------------------------------------------------------------------------------------
YAML_BYTES = 1 << 20  # an inventory, or a foreign file with hosts
YAML_DEPTH = 16  # nesting of lists and mappings; deeper files are a mistake or an attack on the parser
ENV_FILE_BYTES = 1 << 20
SSH_CONFIG_BYTES = 1 << 20  # of an inventory's ssh_config that are searched for programs
SCRIPT_BYTES = 8 << 20  # of a job's script: the rest is not read
COMPLETED_HOSTS = 4096  # that completion offers: a short line with ranges can name millions

# --- the search of `ddpctl init` for scripts --------------------------------------------------------------------------
SEARCH_FILES, SEARCH_FOLDERS = 400, 200
SEARCH_DEPTH = 2  # folders below the first
SEARCH_BYTES = 1 << 20  # of a file

# --- keeping ----------------------------------------------------------------------------------------------------------
KEEP_RUNS = 200  # the newest runs whose hints stay on this machine
KEEP_HASHES_S = 90 * 86400.0  # the hashes of a data folder that was not sent since
KEEP_PREFLIGHT_S = 3600.0  # an older report is removed when the next report is saved
