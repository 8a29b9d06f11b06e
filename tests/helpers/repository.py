"""A project for a test: its files and its git repository."""

import subprocess

from howlinear.files import paths

IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")


def git(root, *arguments):
    subprocess.run(["git", "-C", str(root), *IDENTITY, *arguments], check=True, capture_output=True)


def commit(root):
    """Commit all that has changed."""
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "step")


def write_project(root, monkeypatch, files):
    """Write files, by name, into a folder that becomes the project's root."""
    for name in ("ROOT", "MODELS", "NOTEBOOKS", "PROFILES", "BUILD"):
        monkeypatch.setattr(paths, name, root / ("" if name == "ROOT" else name.lower()))
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
