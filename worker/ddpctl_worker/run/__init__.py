"""A run on this node: from the start verb to the exit record, and everything that watches it in between."""
