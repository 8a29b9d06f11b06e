"""Of what degree a block is. Explained in notebook 10."""
