"""``python -m ddpctl``: as ``ddpctl``."""

from ddpctl.cli.app import main

if __name__ == "__main__":
    main()
