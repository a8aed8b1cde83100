"""The only package that opens a connection."""

import sys

# paramiko imports invoke, a task runner, for one keyword (`Match exec`) of an ssh_config reader that is not used here.
# That takes a tenth of the time in which a command starts, so paramiko is loaded as if invoke were not installed.
if "invoke" not in sys.modules:
    sys.modules["invoke"] = None  # type: ignore[assignment]
    import paramiko as _paramiko  # noqa: F401

    del sys.modules["invoke"]
