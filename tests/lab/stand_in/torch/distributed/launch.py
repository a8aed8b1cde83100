"""The launcher under its old name: it gives each rank its local rank as an option unless `--use-env` is given."""

from __future__ import annotations

import warnings

from .run import parser, run

NOTICE = """The module torch.distributed.launch is deprecated
and will be removed in future. Use torchrun.
Note that --use-env is set by default in torchrun.
If your script expects `--local-rank` argument to be set, please
change it to read from `os.environ['LOCAL_RANK']` instead. See 
https://pytorch.org/docs/stable/distributed.html#launch-utility for 
further instructions
"""  # noqa: W291


def main() -> None:
    warnings.warn(NOTICE, FutureWarning, stacklevel=2)
    options = parser()
    options.add_argument("--use-env", "--use_env", action="store_true")
    run(options.parse_args())


if __name__ == "__main__":
    main()
