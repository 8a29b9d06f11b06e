"""What carries a high R²_lin: how many directions, which features, which tokens, which rows. Explained in 04."""
