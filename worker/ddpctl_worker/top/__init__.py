"""What ``ddpctl top`` shows of a node, every two seconds: the machine, its GPUs, its runs and their ranks."""
