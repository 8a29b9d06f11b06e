"""Files: where the project keeps what, how a file is written whole or not at all, and the JSON of results."""
