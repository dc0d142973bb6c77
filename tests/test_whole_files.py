"""Files are replaced whole or not at all, whoever writes them."""

from __future__ import annotations

import os

import pytest

from turnwise_jax import files
from turnwise_jax.files import replacing, write_bytes, write_text


def test_a_file_is_on_the_disk_before_it_takes_the_others_place(tmp_path, monkeypatch):
    place, done = tmp_path / "made" / "file.txt", []

    def flushed(number):
        done.append(("flushed", os.fstat(number).st_ino))

    def renamed(old, new, rename=os.replace):
        done.append(("renamed", os.stat(old).st_ino))
        assert os.path.dirname(old) == os.path.dirname(new)
        rename(old, new)

    monkeypatch.setattr(files.os, "fsync", flushed)
    monkeypatch.setattr(files.os, "replace", renamed)
    write_text(place, "größer\n")
    number = place.stat().st_ino
    assert done == [("flushed", number), ("renamed", number)]
    assert place.read_bytes() == "größer\n".encode()
    write_bytes(place, b"\x00new")
    assert place.read_bytes() == b"\x00new"
    assert [path.name for path in place.parent.iterdir()] == ["file.txt"]


def test_what_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    place = tmp_path / "file.txt"
    write_text(place, "old")

    def write():
        with replacing(place) as partial:
            partial.write_text("ne")
            assert place.read_text() == "old"
            raise ValueError("half")

    with pytest.raises(ValueError, match="half"):
        write()
    assert place.read_text() == "old"
    assert list(tmp_path.iterdir()) == [place]


def test_files_have_the_rights_that_the_user_asks_for(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "file.txt", "")
    finally:
        os.umask(before)
    assert (tmp_path / "file.txt").stat().st_mode & 0o777 == 0o640
