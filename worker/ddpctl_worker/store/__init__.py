"""Files below base_dir: blobs by content, environments made of them, their spread from node to node, and gc."""
