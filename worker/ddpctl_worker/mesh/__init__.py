"""What the nodes try with each other before a run: ports, speed, firewalls, a rehearsal of the launcher."""
