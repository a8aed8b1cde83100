"""What the ranks write: from their pipes into log segments, and from there to ``tail``, ``fetch`` and ``metrics``."""
