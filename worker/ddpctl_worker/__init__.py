"""The node side of ddpctl: standard library only, Python 3.8 and newer."""
