"""What a product of inputs adds to the line. Explained in notebook 03."""
