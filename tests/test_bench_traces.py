"""What traces leave: a raw result by the name of their schema, and an exit status."""

from __future__ import annotations

import json

import pytest
import traces

from charcnn.gpu import device

MADE = {"microseconds": 5.0, "microseconds_traced": 6.0, "events": [{}, {}]}


def test_what_was_traced_is_kept(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(device, "choose", lambda gpus: [0])
    monkeypatch.setattr(device, "require_hopper", lambda what, emulated: None)
    assert traces.kept("wgmma_trace", lambda: MADE, tmp_path) == 0
    (file,) = tmp_path.iterdir()
    assert file.name.endswith("-wgmma-trace.json")
    found = json.loads(file.read_text())
    assert (found["schema"], found["events"], found["microseconds"]) == ("wgmma_trace", [{}, {}], 5.0)
    assert "2 waits; 5 us, traced 6 us" in capsys.readouterr().out
    assert traces.kept("wgmma_trace", lambda: None, tmp_path / "other") == 1
    assert not (tmp_path / "other").exists()
    assert capsys.readouterr().err == "wgmma_trace: the traced kernel's results differ\n"


def test_a_machine_that_is_no_hopper(monkeypatch, tmp_path, capsys):
    def refuse(gpus):
        raise device.DeviceError("no GPU")

    monkeypatch.setattr(device, "choose", refuse)
    assert traces.kept("attention_trace", lambda: pytest.fail("traced"), tmp_path) == 2
    assert capsys.readouterr().err == "attention_trace: no GPU\n"
