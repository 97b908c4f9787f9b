"""The GPU's context made beside the imports."""

import argparse
import ctypes

import pytest

from charcnn.classify.classifier import Classifier
from charcnn.cli import model
from charcnn.gpu import early
from charcnn.offload import LAUNCHED


class Driver:
    """Stands in for NVIDIA's: answers each call, and notes it."""

    def __init__(self, **failing):
        self.called, self._failing = [], failing

    def __getattr__(self, name):
        return lambda *arguments: self.called.append(name) or self._failing.get(name, 0)


@pytest.fixture
def there(tmp_path, monkeypatch):
    (tmp_path / "node").touch()
    monkeypatch.setattr(early, "NODE", str(tmp_path / "node"))

    def use(driver):
        monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
        return driver

    return use


def test_the_context_is_let_go_of_behind_the_block(there):
    driver = there(Driver())
    with early.context(True):
        assert "cuDevicePrimaryCtxRelease" not in driver.called
    assert driver.called == ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease"]


@pytest.mark.parametrize(
    ("call", "count"),
    [("cuInit", 1), ("cuDeviceGet", 2), ("cuDevicePrimaryCtxRetain", 3)],
    ids=lambda value: str(value),
)
def test_what_fails_is_left_to_others(there, call, count):
    driver = there(Driver(**{call: 100}))
    with early.context(True):
        pass
    assert driver.called[-1] == call
    assert len(driver.called) == count


def test_no_driver(there, monkeypatch):
    def missing(name):
        raise OSError(name)

    there(None)
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with early.context(True):
        pass


def test_none_is_made_where_none_is_wanted_or_no_gpu_is(there, monkeypatch, tmp_path):
    driver = there(Driver())
    with early.context(False):
        pass
    monkeypatch.setattr(early, "NODE", str(tmp_path / "nowhere"))
    with early.context(True):
        pass
    assert not driver.called


@pytest.mark.parametrize(
    ("words", "variables", "expected"),
    [
        ([], {}, ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease"]),
        (["--device", "cpu"], {}, []),
        ([], {LAUNCHED[0]: "2"}, []),  # a rank's GPU may be another one
        ([], {"NUMBA_ENABLE_CUDASIM": "1"}, []),
    ],
)
def test_a_commands_classifier(words, variables, expected, there, monkeypatch):
    driver = there(Driver())
    for name in (*LAUNCHED, "NUMBA_ENABLE_CUDASIM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Classifier, "load", lambda path, **options: None)
    parser = argparse.ArgumentParser()
    model.add_model_arguments(parser)
    model.load(parser.parse_args(words))
    assert driver.called == expected
