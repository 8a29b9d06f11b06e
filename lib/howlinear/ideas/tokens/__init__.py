"""What the token of a row decides of a block: shares of variance, tables, and lines through both."""
