"""What a product of inputs adds to the line. Told by notebook 03."""
