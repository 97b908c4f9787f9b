"""Output files are whole, or as they were."""

import json
import os
import stat

import pytest

from charcnn.files import as_json, replacing


def test_a_new_file_holds_what_was_written_and_has_an_ordinary_ones_permissions(tmp_path):
    with open(tmp_path / "ordinary", "w"):
        pass
    with replacing(tmp_path / "new", "w") as file:
        file.write("é\r\nb\n")
    assert (tmp_path / "new").read_bytes() == b"\xc3\xa9\r\nb\n"
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "ordinary").stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["new", "ordinary"]


def test_an_old_file_is_replaced_and_its_permissions_stay(tmp_path):
    path = tmp_path / "old"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with replacing(path, "wb") as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "old"
    path.write_bytes(b"old")

    def interrupted():
        with replacing(path, "wb") as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        interrupted()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["old"]


def test_a_symbolic_link_stays_one(tmp_path):
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to("folder/file")
    for text in ("first", "second"):
        with replacing(link) as file:
            file.write(text)
    assert link.is_symlink()
    assert (tmp_path / "folder" / "file").read_text() == "second"


def test_what_cannot_be_replaced_is_opened_as_it_is(tmp_path):
    with replacing("/dev/null") as file:
        file.write("gone")
    assert not os.path.isfile("/dev/null")
    with pytest.raises(IsADirectoryError), replacing(tmp_path):
        pass


def test_a_missing_folder_is_named_by_the_users_path(tmp_path):
    path = tmp_path / "missing" / "file"
    with pytest.raises(FileNotFoundError) as caught, replacing(path):
        pass
    assert caught.value.filename == str(path)


def test_a_full_disk_names_the_users_path(tmp_path):
    for path in (tmp_path / "file", "/dev/full"):
        if not os.path.exists("/dev/full"):
            pytest.skip("the system has no /dev/full")

        def fill(path=path):
            with replacing(path, "wb") as file:
                if path != "/dev/full":
                    os.dup2(os.open("/dev/full", os.O_WRONLY), file.fileno())
                file.write(b"x")

        with pytest.raises(OSError, match="No space left on device") as caught:
            fill()
        assert caught.value.filename == str(path)
    assert os.listdir(tmp_path) == []


def test_a_temporary_file_of_one_name_is_written_over(tmp_path):
    path, temporary = tmp_path / "file", tmp_path / "file.new"
    temporary.write_text("what a kill left, and longer")
    with replacing(path, temporary=temporary) as file:
        file.write("whole")
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_text() == "whole"


def test_mode_is_checked(tmp_path):
    with pytest.raises(ValueError, match="mode='a'"), replacing(tmp_path / "file", "a"):
        pass


def test_json_holds_no_number_that_is_none():
    value = {"a": [1.5, float("nan"), (float("inf"), True)], "b": {"c": -float("inf"), "d": None, "e": "NaN"}}
    expected = {"a": [1.5, None, [None, True]], "b": {"c": None, "d": None, "e": "NaN"}}
    assert json.loads(as_json(value), parse_constant=pytest.fail) == expected
    assert as_json({"a": 1}, indent=1) == '{\n "a": 1\n}'
