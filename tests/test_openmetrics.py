"""How far a command is, for a monitoring system: what OpenMetrics' grammar asks, and that files appear whole."""

import argparse
import re
import threading

import pytest

from charcnn.cli import classify
from charcnn.config import TINY
from charcnn.host import openmetrics
from charcnn.host.openmetrics import OpenMetrics, Sample, render
from charcnn.model import params
from charcnn.text import encodings
from charcnn.training.record import Seen

LINE = re.compile(
    r"# (HELP|TYPE) charcnn_[a-z_]+ [^\n]+|# EOF|"
    r'charcnn_[a-z_]+(\{([a-z]+="([^"\\\n]|\\[\\n"])*",?)+\})? (-?\d+(\.\d+)?(e[-+]?\d+)?|NaN|[-+]Inf)'
)


def values(text):
    lines = text.splitlines()
    wrong = [line for line in lines if not LINE.fullmatch(line)]
    assert not wrong
    assert lines[-1] == "# EOF"
    assert text.endswith("\n")
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_samples_are_rendered_as_the_grammar_has_them():
    text = render(
        [
            Sample("rows", "rows so far", 3, counter=True),
            Sample("loss", 'a "mean"', 0.25, {"part": "train"}),
            Sample("loss", 'a "mean"', float("nan"), {"part": 'a"b\\c\nd'}),
            Sample("rate", "large", 1e-7),
            Sample("left", "none", float("inf")),
        ]
    )
    found = values(text)
    assert found["charcnn_rows_total"] == "3"
    assert "# TYPE charcnn_rows counter\n" in text
    assert text.count("# TYPE charcnn_loss gauge") == 1
    assert found['charcnn_loss{part="train"}'] == "0.25"
    assert found[r'charcnn_loss{part="a\"b\\c\nd"}'] == "NaN"
    assert (found["charcnn_rate"], found["charcnn_left"]) == ("1e-07", "+Inf")
    assert re.match(openmetrics.MARK, text.encode())


def test_a_file_is_written_at_the_start_meanwhile_and_at_the_end(tmp_path):
    path, came, count = tmp_path / "a.prom", threading.Event(), []

    def samples():
        count.append(1)
        if len(count) > 2:
            came.set()
        yield Sample("done", "how often it was asked", len(count))

    with OpenMetrics(str(path), "train", samples, every=0.001):
        assert came.wait(60)
        assert values(path.read_text())["charcnn_train_running"] == "1"
    found = values(path.read_text())
    assert found["charcnn_train_running"] == found["charcnn_train_failed"] == "0"
    assert int(found["charcnn_done"]) >= 3
    assert [file.name for file in tmp_path.iterdir()] == ["a.prom"]
    with pytest.raises(KeyError), OpenMetrics(str(path), "train", list, every=60):
        raise KeyError
    assert values(path.read_text())["charcnn_train_failed"] == "1"


def test_no_file_is_asked_for_and_one_that_cannot_be_written_stops_nothing(tmp_path, capsys):
    with OpenMetrics(None, "train", list):
        pass
    with OpenMetrics(str(tmp_path / "none" / "a.prom"), "classify", list, every=60):
        pass
    said = capsys.readouterr().err
    assert said.count("charcnn classify: warning: --openmetrics ") == 1
    assert "No such file" in said


def test_what_is_seen_of_a_training():
    seen = Seen(90)
    seen.step(16)
    seen.step(16)
    assert values(render(seen.samples()))["charcnn_train_rows_total"] == "32"
    row = {"epoch": 2, "rate": 1e-3, "train_loss": 1.5, "train_accuracy": 0.5, "valid_loss": 2.5}
    seen.epoch(row, 12)
    found = values(render(seen.samples()))
    assert (found["charcnn_train_epoch"], found["charcnn_train_epochs"]) == ("2", "12")
    assert found['charcnn_train_loss{part="valid"}'] == "2.5"
    assert 'charcnn_train_accuracy{part="valid"}' not in found


def test_train_writes_them(tmp_path, capsys):
    from test_training import QUICK, run, write_rows

    write_rows(tmp_path / "a.csv")
    out, path = tmp_path / "m.safetensors", tmp_path / "a.prom"
    options = ["--data", tmp_path / "a.csv", "--out", out, *QUICK, "--openmetrics", path]
    assert run(*options) == 0
    found = values(path.read_text())
    assert found["charcnn_train_epoch"] == found["charcnn_train_epochs"] == "3"
    assert found["charcnn_train_rows_total"] == str(3 * 6 * 16)
    assert "openmetrics" not in params.load(out).metadata["training"]["command"]
    path.write_text("mine")
    out.unlink()
    (tmp_path / "m-metrics.csv").unlink()
    assert run(*options) == 2
    assert "a.prom: already exists" in capsys.readouterr().err


def test_classify_writes_them(tmp_path):
    model = tmp_path / "tiny.safetensors"
    params.save(model, params.init(TINY, seed=3), TINY, encoding="crepe", classes=encodings.CLASSES)
    (tmp_path / "a.jsonl").write_text('{"text": "a goal"}\nno\n{"text": "a bank"}\n')
    parser = argparse.ArgumentParser()
    classify.add_arguments(parser)
    words = [tmp_path / "a.jsonl", "--model", model, "--device", "cpu", "--openmetrics", tmp_path / "c.prom", "--quiet"]
    classify.run(parser.parse_args([str(word) for word in words]))
    found = values((tmp_path / "c.prom").read_text())
    assert found["charcnn_classify_rows_total"] == "3"
    assert found["charcnn_classify_unreadable_rows"] == "1"
    assert (found["charcnn_classify_files"], found["charcnn_classify_files_done"]) == ("1", "1")
    assert any(name.startswith('charcnn_classify_level{level="l') for name in found)


def test_the_bar_within_an_epoch_counts_rows(monkeypatch):
    import test_training

    from charcnn.training import passes

    shown = []

    class Seen(passes.Progress):
        def update(self, count):
            super().update(count)
            shown.append(self.line(100))

    monkeypatch.setattr(passes, "Progress", Seen)
    test_training.trained(test_training.Recipe(epochs=2, batch=16))
    assert len(shown) == 2 * 6
    assert shown[5].startswith("epoch 1/2: 100%")
    assert " 96.0/96.0 " in shown[5]
    assert " rows/s" in shown[5]
    assert shown[-1].startswith("epoch 2/2: ")
