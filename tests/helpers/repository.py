"""A git repository of a test's own."""

import subprocess

IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")


def git(root, *arguments):
    subprocess.run(["git", "-C", str(root), *IDENTITY, *arguments], check=True, capture_output=True)


def commit(root):
    """Commit all that has changed."""
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "step")
