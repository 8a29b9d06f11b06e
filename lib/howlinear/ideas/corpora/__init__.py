"""Does a block's linear part survive a change of text? Explained in notebook 05."""
