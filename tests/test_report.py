"""What bench/report says of levels beside other libraries and the hardware's limit, on results made up here."""

import json
from pathlib import Path

import pytest
from report import behind, fused, host_bytes, ideas, levels, limits, schema, tried
from report.pictures import fused_alexnet
from report.schema import LevelResult, Place, Results

from charcnn import catalog
from charcnn.charts import svg
from charcnn.config import SMALL

GPU = Place("nvidia-h200", 1, 1)


def peer(name, precision, rate, *, batch=4096, level=False):
    return {"name": name, "title": name, "precision": precision, "inputs_per_second": rate, "batch": batch} | (
        {"level": True} if level else {}
    )


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Results of l12 and l13 on a GPU, of three libraries, and of cuBLAS."""
    file = tmp_path / "nvidia-h200.json"
    raw = {
        "device": "cuda",
        "machine": {"gpus": ["NVIDIA H200"], "cores": 16},
        "batches": [4096],
        "peers": [
            peer("plain", "float32", 40.0),
            peer("half", "fp16", 400.0),
            peer("coarse", "bf16", 500.0),
            peer("l16", "fp16", 900.0, level=True),
        ],
        "earlier": [{"batches": [1], "peers": [peer("plain", "float32", 7.0, batch=1)]}],
    }
    peak = {"layer": "peak", "precision": "fp16", "tflop_per_second": 600.0}
    found = Results((file,), {GPU: "NVIDIA H200"}, peers={file: raw})
    found.layers[tmp_path / "layers.json"] = {"layers": [peak], "machine": raw["machine"]}
    found.levels["l12", GPU] = LevelResult(100.0, {"conv": 8.0, "fc": 2.0}, 256, file)
    found.levels["l13", GPU] = LevelResult(400.0, {"conv": 2.0, "fc": 1.0}, 1024, file)
    for module in (levels, limits, schema):
        monkeypatch.setattr(module, "results", lambda: found)
    return file


@pytest.mark.parametrize(
    ("precision", "name"), [("fp32", "plain"), ("fp16x3", "plain"), ("fp16", "half"), ("fp8", "coarse")]
)
def test_the_best_library_is_no_coarser(made, precision, name):
    assert limits.best_peer(made, precision).title == name


def test_rates_from_the_host_are_held_against_the_narrower_of_bus_and_gpu(monkeypatch, tmp_path):
    rates = {"on the GPU": 400.0, "staged": 270.0, "pinned": 285.0}
    network = {
        "network": "alexnet-2012",
        "batch": 1024,
        "inputs": 4096,
        "input_bytes": 10**8,
        "inputs_per_second": rates,
    }
    text = {
        "network": "l21 fp16",
        "batch": 4096,
        "inputs": 8192,
        "input_bytes": 1000,
        "inputs_per_second": {**rates, "staged": 396.0},
    }
    command = {"network": "alexnet", "inputs": 8192, "inputs_per_second": 240.0, "copied": ["staged by 8 threads"]}
    command["source"] = "a.npy"
    raw = {
        "networks": [network, text], "commands": [command], "bus": {"up": 30.0},
        "host_memory": {"1": 10.0, "8": 60.0, "16": 50.0}, "registering": {"bytes": 2e9, "seconds": 0.5},
        "machine": {"gpus": ["NVIDIA H200"], "cores": 16},
    }  # fmt: skip
    found = Results((), host_bytes={tmp_path / "nvidia-h200-host-bytes.json": raw})
    monkeypatch.setattr(host_bytes, "results", lambda: found)
    said = host_bytes.host_bytes(tmp_path / "networks.md")
    assert "30.0 GB/s of pinned memory; one thread copies 10.0 GB/s on the host, 8 threads 60.0" in said
    assert "0.25 s a GB" in said
    assert [row.split(" | ")[1:] for row in said.splitlines() if row.startswith("| alexnet")] == [
        ["on the GPU", "400.0", "–", "– |"],
        ["staged in pieces, three streams", "270.0", "27.0", "90 % |"],
        ["straight from the caller's pinned pages", "285.0", "28.5", "95 % |"],
        ["the command, 8,192 inputs from a.npy, staged by 8 threads", "240.0", "24.0", "80 % |"],
    ]
    assert "| 396.0 | 0.0 | 99 % |" in said


def test_the_best_library_of_another_batch(made):
    assert limits.best_peer(made, "fp16", 1).inputs_per_second == 7.0


def test_a_level_beside_the_best_library(made):
    rate, best = limits.beside_peers(catalog.LEVELS[13])
    assert (rate, best.title) == (400.0, "plain")


def test_products_with_zeros_count_where_a_level_takes_them():
    first = 2 * 256 * 1008 * 70 * 7
    assert limits.flops("l12") == SMALL.flops
    assert limits.flops("l13") == SMALL.flops - first


def test_a_limit_is_of_the_unit_that_multiplies(made):
    by_name = {level.name: level for level in catalog.LEVELS}
    assert limits.limit(by_name["l14"], GPU) == pytest.approx(600e12 / limits.flops("l14"))
    assert limits.limit(by_name["l12"], GPU) == pytest.approx(132 * 128 * 2 * 1.98e9 / SMALL.flops)
    assert limits.limit(by_name["l11"], GPU) is None


def test_stages_are_told_by_their_share_of_what_was_saved(made):
    told = levels.cost(made, "l13")
    assert "| conv | 8.00 | 2.00 | 86 % |" in told
    assert "| fc | 2.00 | 1.00 | 14 % |" in told


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"conv": 8, "fc": 2}, {"conv": 2, "fc": 2}, True),
        ({"conv": 8, "fc": 2}, {"conv": 1, "fc": 3}, False),
        ({"conv": 8, "fc": 2}, {"conv": 4, "fc": 2}, False),
        ({"all": 10}, {"all": 4}, False),
    ],
    ids=["", "one grew", "more overlap", "one alone"],
)
def test_shares_are_told_where_they_add_up(before, after, told):
    file = Path("raw.json")
    shares = levels.shares(LevelResult(100.0, before, 16, file), LevelResult(250.0, after, 16, file))
    assert shares == ({"conv": 1.0, "fc": 0.0} if told else {})


def test_both_batch_sizes_are_told(made):
    assert "| 100.0 (N=256) | 400.0 (N=1,024) | 4.00 |" in levels.step(made, "l13")


def test_what_an_idea_won_is_told_by_its_factor_and_share():
    assert ideas._share(2.0, 8.0) == "33 %"
    assert ideas._share(0.5, 8.0) == "−33 %"


def trial(tmp_path, *designs):
    file = tmp_path / "trial.json"
    runs = [
        [{"layer": "conv3", "precision": "fp8", "design": design, "tflop_per_second": rate} for design, rate in run]
        for run in designs
    ]
    file.write_text(json.dumps({"runs": [{"designs": run} for run in runs]}))
    return file


def test_what_failed_is_held_against_its_own_run(tmp_path):
    """A run's rates are not compared with another's; several designs give a range."""
    file = trial(tmp_path, [("as shipped", 100.0), ("later 1", 98.0), ("later 2", 101.0)], [("later 3", 500.0)])
    one = tried.Tried("", "", file, "as shipped", ("later",), ("conv3",))
    assert tried._seen("l17", one) == "conv3 −2 to +1 %"


def test_what_failed_with_no_run_is_an_error(tmp_path):
    one = tried.Tried("", "", trial(tmp_path, [("later", 98.0)]), "as shipped", ("later",), ("conv3",))
    with pytest.raises(schema.ReportError, match=r"^trial.json: no run of conv3 has 'as shipped'"):
        tried._seen("l17", one)


@pytest.mark.parametrize(("block", "name"), [(ideas.ideas, "l3"), (tried.tried, "l3")])
def test_a_level_of_which_nothing_is_kept_is_an_error(block, name):
    with pytest.raises(schema.ReportError, match="l3"):
        block(Path("page.md"), name)


def test_an_axis_begins_and_ends_where_it_is_told():
    across, up = svg.Axis(1, 1000, 10, 40), svg.Axis(0, 5, 100, 0, log=False)
    assert [across(value) for value in (1, 10, 1000)] == pytest.approx([10, 20, 40])
    assert across.decades() == [1, 10, 100, 1000]
    assert [up(value) for value in (0, 2, 5)] == pytest.approx([100, 60, 0])


@pytest.mark.parametrize(
    ("value", "said"), [(2.324, "2.32"), (608.1, "608"), (35828, "35.8 k"), (1.18e6, "1.18 M"), (1446e12, "1,446 T")]
)
def test_a_number_in_a_picture_is_short(value, said):
    assert svg.short(value) == said


def test_a_picture_has_what_it_is_told_in_both_colours():
    picture = svg.Picture("A < B", 20)
    picture.rect(0, 0, 5, 5, "c0", "2 & 3")
    drawn = str(picture)
    assert "<title>A &lt; B</title>" in drawn
    assert "<title>2 &amp; 3</title>" in drawn
    light, _, dark = drawn.partition("prefers-color-scheme: dark")
    assert svg.COLOURS[0][0] in light
    assert svg.COLOURS[0][1] in dark


def test_a_narrow_picture_takes_more_lines_and_moves_down_what_is_below():
    def drawn():
        picture = svg.Picture("A picture", 100)
        picture.legend([("c0", "one"), ("c1", "two"), ("c2", "three")], 10, 14, 180)
        picture.text(300, 30, "four words that wrap", "small")
        picture.rect(0, 40, 5, 5, "c0", "below")
        picture.rect(0, 4, 5, 5, "c0", "above")
        return str(picture)

    with svg.narrow():
        tall = drawn()
    assert 'viewBox="0 0 600 100"' in drawn()
    assert 'viewBox="0 0 360 152"' in tall  # two rows of the legend, and two lines, are more
    assert 'y="40.0"' in tall.partition('<g transform="translate(0 52)">')[2].partition("</g>")[0]
    assert tall.splitlines()[-2].startswith('<rect class="c0" x="0.0" y="4.0"'), "what is above stays"
    assert [line for line in drawn().splitlines() if "<g" in line] == []


def test_alexnets_first_two_layers(monkeypatch, tmp_path):
    """A table of times and of counts for each machine, and the picture: of rows made up here."""
    ways = [
        {"variant": "2012", "precision": precision, "batch": batch, "way": way, "part": part, "flops": 10**9,
         "microseconds": 10.0 * batch * (2 if way == "layer by layer" else 1), "dram_bytes": 250_000,
         "parameter_bytes": 10**6, **({"computed": 1.25, "shared_bytes": 200_000} if way == "rolling" else {})}
        for precision in ("fp32", "fp16") for batch in (1, 1024)
        for part in ("front", "network") for way in ("rolling", "layer by layer", f"torch-{precision}")
    ]  # fmt: skip
    counted = [{"variant": "2012", "precision": "fp16", "batch": 1024, "way": "rolling", "read": 2e5, "written": 1e5}]
    raw = {"ways": ways, "counted": counted, "machine": {"gpus": ["NVIDIA H100"], "cores": 16}}
    found = Results((), fused_alexnet={tmp_path / "made.json": raw})
    for module in (fused, fused_alexnet):
        monkeypatch.setattr(module, "results", lambda: found)
    text = fused.fused_alexnet(schema.ROOT / "docs" / "fusion.md")
    assert "| 2012, fp16, N = 1,024 | – | – | 10,240.0 | 20,480.0 | 2.00 × | 10,240.0 | – |" in text
    assert "| 2012, fp16, rolling | 1.25 × | 200,000 | 250,000 | 300,000 (N = 1024) | 3,984 |" in text
    assert "![Dots: " in text.partition("\n")[0]
    svg_text = fused_alexnet.time_of_alexnets_first_two()
    assert svg_text.count("<circle") == 8
    assert "2012, fp16, rolling, N = 1,024: 10.00 µs an image at 3,984 FLOP a byte" in svg_text


def test_behind_are_the_cases_that_the_best_of_ours_loses(monkeypatch, tmp_path):
    """By what is printed: 0.996 is 1.00."""
    rows = [
        {"shape": {"m": m, "n": 8, "k": 8}, "made": name, "precision": "fp16", "tflop_per_second": rate}
        for m, rates in {16: (90.0, 98.0, 100.0), 32: (99.6, 50.0, 100.0)}.items()
        for name, rate in zip(("mma", "wgmma", "cuBLAS, matmul"), rates, strict=True)
    ]
    file = tmp_path / "gemm.json"
    raw = {"gemm": rows, "machine": {"gpus": ["NVIDIA H200"], "cores": 16}}
    monkeypatch.setattr(behind, "results", lambda: Results((file,), gemm={file: raw}))
    text = behind.behind(tmp_path / "page.md", "gemm")
    assert text.startswith("Behind in 1 of 2 cases.\n")
    assert "| NVIDIA H200 | 16 × 8 × 8, fp16 | cuBLAS | 0.98 |\n" in text
    assert "32 × 8 × 8" not in text
