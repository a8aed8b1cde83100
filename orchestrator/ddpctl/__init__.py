"""ddpctl: run multi-node PyTorch DDP jobs on plain machines that speak SSH."""

__version__ = "0.1.0"
