"""Models: load them, find their feed-forward blocks, put maps in their place. Explained in notebook 01."""
