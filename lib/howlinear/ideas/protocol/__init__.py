"""What depends on the protocol: R²_lin under every combination of choices. The idea of notebook 11."""
