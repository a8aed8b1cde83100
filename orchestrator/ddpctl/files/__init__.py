"""The only reader and writer of local files: the inventory, secrets, and what this machine remembers of its runs."""
