"""What builds the project's pages and keeps its pipeline: outside the package, run from the project's root."""
