"""What `charcnn classify` is asked to do is said once, and nothing changes it on the way."""

import dataclasses

import pytest

from charcnn.__main__ import main, parser
from charcnn.cli import classify, inputs, ranks
from charcnn.cli.model import model_of
from charcnn.config import TINY
from charcnn.model import params
from charcnn.text.readers.base import Reader
from charcnn.text.writers.open import WRITERS


@pytest.fixture
def asked(tmp_path):
    model, source = str(tmp_path / "model.safetensors"), tmp_path / "in.txt"
    params.save(model, params.init(TINY, 3), TINY, encoding="crepe")
    source.write_text("a\nb\n")
    words = ["classify", str(source), "--model", model, "--device", "cpu", "--quiet"]

    def parsed(*more):
        return parser().parse_args([*words, *more])

    return parsed


@pytest.mark.parametrize("more", [[], ["--offload", "static"], ["--offload", "farm", "--root-serves"]])
@pytest.mark.parametrize("several", [False, True])
def test_options_stay_as_they_came(asked, tmp_path, more, several):
    options = asked(*more, *(["-o", f"{tmp_path}/out/"] if several else []))
    before = dict(vars(options))
    assert inputs.several(options.input, options.output) == several
    assert classify.run(options) == 0
    assert vars(options) == before


def test_a_job_is_frozen(asked):
    options = asked("--text-columns", "a,b", "--delimiter", r"\t", "--windows", "--window-size", "40")
    job = classify.job_of(options, model_of(options))
    assert (job.layout.texts, job.layout.delimiter, job.windows) == (("a", "b"), "\t", 40)
    for frozen, name in ((job, "tasks"), (job.model, "gpus")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(frozen, name, None)


def test_a_job_lists_inputs_and_outputs_and_one_file_is_a_list_of_one(asked, tmp_path):
    def job(*more):
        options = asked(*more)
        return classify.job_of(options, model_of(options))

    alone, several = job(), job("-o", f"{tmp_path}/out/")
    (task,) = alone.tasks
    assert (task.output, task.report) == (f"{tmp_path}/in.labelled.txt", f"{tmp_path}/in.labelled.txt.unreadable.csv")
    assert (alone.alone, several.alone, task.root) == (True, False, None)
    assert [(task.output, task.root) for task in several.tasks] == [(f"{tmp_path}/out/in.txt", f"{tmp_path}/out/")]
    (stream,) = job("-o", "-").tasks
    assert (stream.stream, stream.report) == (True, None)
    assert job("-o", "/dev/null", "--report", "r.csv").tasks[0].report == "r.csv"


def test_ranks_encode_on_the_cpu_and_say_so_in_a_copy(asked):
    options = asked("--offload", "farm")
    choice = model_of(options)
    found = ranks.Ranks(None, "farm", deadline=None, root_serves=False).check(options.input, choice)
    assert (found.encode_on, choice.encode_on) == ("cpu", None)
    assert ranks.Ranks(None, None, deadline=None, root_serves=False).check(options.input, choice) is choice


def test_contradictions_are_told_before_anything_is_opened(asked, capsys):
    assert main(["classify", "nowhere.txt", "--window-size", "40"]) == 2
    assert "--window-size 40: needs --windows" in capsys.readouterr().err


def test_each_reader_has_its_writer():
    assert set(WRITERS) == set(Reader.__subclasses__())
