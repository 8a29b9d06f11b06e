"""The paper's claims, its own numbers, the numbers they are judged by, and the ledger. Explained in notebook 13."""
