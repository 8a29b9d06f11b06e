"""What carries a high R²_lin: how many directions, which features, which tokens, which rows. Told by notebook 04."""
