"""When training makes the profile. Told by notebook 09."""
