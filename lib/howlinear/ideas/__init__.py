"""The ideas, one file or folder a notebook; none imports another."""
