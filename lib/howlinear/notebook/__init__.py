"""What a notebook's first and last cells ask for, and running notebooks unattended."""
