"""Models: load them, find their feed-forward blocks, put maps in their place. Told by notebook 01."""
