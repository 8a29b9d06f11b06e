"""When training makes the profile. Explained in notebook 09."""
