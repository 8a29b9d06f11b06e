"""Does a block's linear part survive a change of text? Told by notebook 05."""
