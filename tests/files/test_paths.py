import os
import stat

import pytest

from howlinear.errors import SourceError
from howlinear.files import atomic


def test_a_file_appears_whole_and_in_a_new_folder(tmp_path):
    target = tmp_path / "a" / "b" / "file.json"
    with atomic.written_aside(target) as aside:
        assert aside.suffix == ".json"
        assert aside.parent == target.parent
        aside.write_text("{}")
        written = aside.stat().st_ino
        assert not target.exists()
    assert target.read_text() == "{}"
    assert target.stat().st_ino == written  # renamed, not copied: a reader sees all of it or nothing
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("stop", [RuntimeError, KeyboardInterrupt])
def test_a_file_is_replaced_only_when_done(tmp_path, stop):
    target = tmp_path / "file.txt"
    target.write_text("old")

    def stopped():
        with atomic.written_aside(target) as aside:
            aside.write_text("ne")
            raise stop

    with pytest.raises(stop):
        stopped()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
    with atomic.written_aside(str(target)) as aside:
        aside.write_text("new")
    assert target.read_text() == "new"


def test_the_file_has_the_usual_permissions(tmp_path):
    mask = os.umask(0o022)
    try:
        with atomic.written_aside(tmp_path / "file.txt") as aside:
            aside.write_text("text")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "file.txt").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("name", "stop", "message"),
    [
        ("file/under.txt", None, r"cannot write .*choose a folder you may write to"),
        ("folder.txt", None, r"cannot write .*folder\.txt: it is a folder"),
        ("new.txt", OSError(28, "No space left on device"), r"cannot write .*No space left .*; is the disk full\?"),
        ("new.txt", SourceError("no model there"), r"^no model there$"),  # reading while writing is no full disk
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path, name, stop, message):
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "folder.txt").mkdir()

    def write():
        with atomic.written_aside(tmp_path / name):
            if stop is not None:
                raise stop

    with pytest.raises(SourceError, match=message):
        write()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.txt"]
