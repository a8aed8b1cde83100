"""What carries a run on when a host is lost: one agent a host, and how the agents agree."""
