"""What hangs on the protocol: R²_lin under every combination of choices. Told by notebook 11."""
