"""Parquet's columns as other programs mean them: their own keys, labels as floats and bytes, parts without a text."""

import base64
import decimal
import json

import pytest
from commands import TEXTS, rows
from test_parquet import put

from charcnn.cli import UNREADABLE, UNUSABLE
from charcnn.text import parquet_keys
from charcnn.text.encodings import CLASSES, ENCODINGS
from charcnn.training import data

pyarrow = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SPARK = {
    "type": "struct",
    "fields": [
        {"name": "text", "type": "string", "nullable": True, "metadata": {}},
        {"name": "topic", "type": "double", "nullable": True, "metadata": {"ml_attr": {"vals": list(CLASSES)}}},
    ],
}
DATASETS = {
    "info": {
        "features": {
            "text": {"dtype": "string", "_type": "Value"},
            "label": {"names": list(CLASSES), "_type": "ClassLabel"},
            "tags": {"feature": {"names": ["a", "b"], "_type": "ClassLabel"}, "_type": "Sequence"},
            "old": [{"names": ["a", "b"], "_type": "ClassLabel"}],
        }
    },
    "fingerprint": "0",
}


def test_what_other_programs_keep_of_columns_lists_the_new_ones(charcnn, tmp_path):
    """Spark reads the columns that its own key lists, and no others; Avro's readers refuse the others."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ["a", "b"], "n": [1, 2]}, index=pandas.Index([7, 9], name="id"))
    table = pyarrow.Table.from_pandas(frame)
    keys = {"org.apache.spark.sql.parquet.row.metadata": SPARK, "huggingface": DATASETS, "geo": {"columns": {}}}
    kept = table.schema.metadata | {key.encode(): json.dumps(value).encode() for key, value in keys.items()}
    put(tmp_path / "in.parquet", table.replace_schema_metadata(kept | {b"parquet.avro.schema": b"{}", b"own": b"1"}))
    assert charcnn("classify", tmp_path / "in.parquet", "-o", tmp_path / "out.parquet")[0] == 0
    written = pq.ParquetFile(tmp_path / "out.parquet")
    metadata = written.schema_arrow.metadata
    spark = json.loads(metadata[b"org.apache.spark.sql.parquet.row.metadata"])["fields"]
    assert [(field["name"], field["type"]) for field in spark[2:]] == [("label", "string"), ("probability", "float")]
    assert spark[:2] == SPARK["fields"]
    datasets = json.loads(metadata[b"huggingface"])
    assert list(datasets) == ["info"], "a fingerprint is of other rows"
    assert datasets["info"]["features"]["label"] == {"dtype": "string", "_type": "Value"}
    assert datasets["info"]["features"]["probability"] == {"dtype": "float32", "_type": "Value"}
    assert [column["name"] for column in json.loads(metadata[b"pandas"])["columns"]] == [
        *("text", "n", "id"),
        *("label", "probability"),
    ]
    assert {b"geo", b"own"} < set(metadata)
    assert b"parquet.avro.schema" not in metadata
    back = pandas.read_parquet(tmp_path / "out.parquet")
    assert back.index.tolist() == [7, 9]
    assert back.columns.tolist() == ["text", "n", "label", "probability"]
    arrow = pyarrow.ipc.read_schema(pyarrow.py_buffer(base64.b64decode(written.metadata.metadata[b"ARROW:schema"])))
    assert arrow.names == ["text", "n", "id", "label", "probability"]


def test_lists_of_labels_and_keys_that_are_not_as_their_program_writes_them():
    lists = {"labels": (True, True), "probabilities": (False, True)}
    spark = {parquet_keys.SPARK: json.dumps(SPARK).encode()}
    found = json.loads(parquet_keys.with_columns(spark, lists)[parquet_keys.SPARK])["fields"][2:]
    assert [field["type"]["elementType"] for field in found] == ["string", "float"]
    for damaged in (b"StructType(List())", b"{}", b'{"fields": 1}', b"[]", b"\xff"):
        assert parquet_keys.with_columns(dict.fromkeys(parquet_keys._LISTS, damaged), lists) == {}
    assert parquet_keys.with_columns(None, lists) == {}


@pytest.mark.parametrize(
    ("key", "value", "column", "names"),
    [
        ("huggingface", DATASETS, "label", CLASSES),
        ("huggingface", DATASETS, "tags", ("a", "b")),
        ("huggingface", DATASETS, "old", ("a", "b")),
        ("huggingface", DATASETS, "text", ()),
        ("org.apache.spark.sql.parquet.row.metadata", SPARK, "topic", CLASSES),
        ("org.apache.spark.sql.parquet.row.metadata", SPARK, "text", ()),
        ("huggingface", {"info": {"features": None}}, "label", ()),
    ],
)
def test_files_that_name_the_numbers_of_their_labels(key, value, column, names):
    assert parquet_keys.class_names({key.encode(): json.dumps(value).encode()}, column) == tuple(names)


def test_evaluate_counts_labels_as_the_file_names_them(charcnn, classifier, tmp_path):
    predicted = [CLASSES.index(label) for label in classifier.predict(TEXTS)]
    table = pyarrow.table({"text": TEXTS, "label": predicted})
    named = table.replace_schema_metadata({"huggingface": json.dumps(DATASETS)})
    status, out, err = charcnn("evaluate", put(tmp_path / "in.parquet", named))
    assert (status, out.split(" (")[0]) == (0, "accuracy 100.00%")
    assert "labels are numbers, which the file names: 0 is World" in err
    other = [name if name != "World" else "Earth" for name in CLASSES]
    DATASETS_ = {"info": {"features": {"label": {"names": other, "_type": "ClassLabel"}}}}
    asked = put(tmp_path / "b.parquet", table.replace_schema_metadata({"huggingface": json.dumps(DATASETS_)}))
    status, out, err = charcnn("evaluate", asked, "--first-label", 0)
    assert out.startswith("accuracy 100.00%"), "what is asked for comes first"
    assert err == f"{asked}: text: text; label: label\n"
    plain = put(tmp_path / "c.parquet", pyarrow.table({"text": TEXTS, "label": [n + 1 for n in predicted]}))
    status, out, err = charcnn("evaluate", plain)
    assert out.startswith("accuracy 100.00%")
    assert "\nlabels are numbers, which the file does not name: 1 was taken for World, 4 for Sci/Tech" in err
    least = put(tmp_path / "d.parquet", pyarrow.table({"text": ["a", "b"], "label": [-1, 3]}, schema=named.schema))
    assert (
        "row 1: label -1: need a text or a whole number from 0 to 3, as the file names" in charcnn("evaluate", least)[2]
    )


@pytest.mark.parametrize(
    ("labels", "left_out"),
    [
        (pyarrow.array([2.0, float("nan"), 3.0, None]), 2),
        (pyarrow.array([2, None, 3, None], pyarrow.float32()), 2),
        (pyarrow.array([decimal.Decimal(2), decimal.Decimal("2.5"), decimal.Decimal(3), None]), 2),
        (pyarrow.array([b"Sports", b"\xff", b"Business", None]), 2),
        (pyarrow.array([b"Sports", b"Sports", b"Business", b"World"]).dictionary_encode(), 0),
        (pyarrow.array([2.0, 1e300, 3.0, float("inf")]), 2),
    ],
)
def test_labels_as_pandas_and_others_write_them(charcnn, tmp_path, labels, left_out):
    """Whole numbers of a column that lacks one are floats; BYTE_ARRAY may say of no column that it is text."""
    source, report = (
        put(tmp_path / "in.parquet", pyarrow.table({"text": list("abcd"), "label": labels})),
        tmp_path / "r",
    )
    status, _, err = charcnn("evaluate", source, "--json", report)
    found = json.loads(report.read_text())
    assert (found["rows"], found["left_out"]) == (4 - left_out, left_out), err
    assert [row["rows"] for row in found["classes"]][1] >= 1, "2 is Sports"
    assert status == (UNREADABLE if left_out else 0)


@pytest.mark.parametrize("kind", ["null", "double", "int64"])
def test_a_part_that_has_no_text_ends_nothing(charcnn, tmp_path, kind):
    """pandas writes a column of which all is missing as null or double, wherever other parts have strings."""
    (tmp_path / "parts").mkdir()
    put(tmp_path / "parts" / "0.parquet", pyarrow.table({"words": ["a", "b"], "n": [1, 2]}))
    put(tmp_path / "parts" / "1.parquet", pyarrow.table({"words": pyarrow.nulls(3, kind), "n": [3, 4, 5]}))
    status, _, err = charcnn("classify", tmp_path / "parts", "-o", tmp_path / "out")
    assert status == UNREADABLE, err
    found = pq.read_table(tmp_path / "out" / "1.parquet")
    assert (found["n"].to_pylist(), found["label"].to_pylist()) == ([3, 4, 5], [None] * 3)
    assert len(rows(tmp_path / "out" / "1.parquet.unreadable.csv")) == 4
    assert None not in pq.read_table(tmp_path / "out" / "0.parquet")["label"].to_pylist()


def test_text_of_another_type_is_refused(charcnn, tmp_path):
    source = put(tmp_path / "in.parquet", pyarrow.table({"text": pyarrow.array([None, 1.5]), "n": [3, 4]}))
    status, _, err = charcnn("classify", source)
    assert (status, err) == (UNUSABLE, f"charcnn classify: {source}: column 'text' holds double: need strings\n")


def test_checksums_of_pages_are_compared(charcnn, tmp_path):
    source, plain = tmp_path / "in.parquet", {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pyarrow.table({"text": ["a long text"]}), source, write_page_checksum=True, **plain)
    data = bytearray(source.read_bytes())
    data[data.index(b"long")] ^= 1
    source.write_bytes(data)
    status, _, err = charcnn("classify", source, "-o", tmp_path / "out.parquet")
    assert status == UNUSABLE
    assert "in.parquet: is not a whole Parquet file (could not verify page integrity" in err


def test_whole_numbers_are_classes_however_they_are_written(tmp_path):
    (tmp_path / "a.csv").write_text("label,text\n10.0,a\n2.0,b\n,c\n")
    read = data.read_rows(tmp_path / "a.csv", ENCODINGS["forward"])
    assert (read.labels, [bad.reason for bad in read.bad]) == (["10", "2"], ["no label"])
    assert data.find_labels(read.labels) == ("2", "10")
    (tmp_path / "a.csv").write_text("label,text\n1.0,a\n1.5,b\n")
    assert data.read_rows(tmp_path / "a.csv", ENCODINGS["forward"]).labels == ["1.0", "1.5"], "versions, say"
