"""The paper's claims, the numbers they are judged by, and the ledger. Told by notebook 12."""
