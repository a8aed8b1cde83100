"""The live screen of ``ddpctl top``: imported only where that is typed, at a terminal."""
