"""Of what degree a block is. Told by notebook 10."""
