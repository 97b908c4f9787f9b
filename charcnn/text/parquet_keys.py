"""What other programs keep of a Parquet file's columns beside its schema: as JSON, under keys of their own.

A reader that goes by such a key sees only the columns that are listed there. Those listed in JSON get ours, too;
a key that holds something else is dropped, after which its reader goes by the schema. Keys that name single columns,
as GeoParquet's `geo` does, stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

SPARK, HUGGING_FACE, PANDAS = b"org.apache.spark.sql.parquet.row.metadata", b"huggingface", b"pandas"

DROPPED = (
    b"avro.schema", b"parquet.avro.schema", b"iceberg.schema", b"parquet.proto.class", b"parquet.proto.descriptor",
    b"pig.schema", b"thrift.class", b"thrift.descriptor",
)  # fmt: skip
"""Keys whose readers refuse a column that is not listed, or leave it out."""


def with_columns(metadata: Mapping[bytes, bytes] | None, added: Mapping[str, tuple[bool, bool]]) -> dict[bytes, bytes]:
    """A file's metadata after columns were added.

    Args:
        metadata: as it was.
        added: of each new column, whether it holds texts, else float32; and whether lists of these.
    """
    found = {key: value for key, value in (metadata or {}).items() if key not in DROPPED}
    for key, add in _LISTS.items():
        if key in found:
            try:
                listed = json.loads(found.pop(key))
                for name, (texts, several) in added.items():
                    add(listed, name, texts, several)
            except (ValueError, LookupError, TypeError, AttributeError):
                continue  # not as that program writes it today: dropped
            found[key] = json.dumps(listed).encode()
    return found


def _add_spark(listed: Any, name: str, texts: bool, several: bool) -> None:
    kind: Any = "string" if texts else "float"
    if several:
        kind = {"type": "array", "elementType": kind, "containsNull": True}
    listed["fields"].append({"name": name, "type": kind, "nullable": True, "metadata": {}})


def _add_hugging_face(listed: Any, name: str, texts: bool, several: bool) -> None:
    feature: Any = {"dtype": "string" if texts else "float32", "_type": "Value"}
    listed["info"]["features"][name] = {"feature": feature, "_type": "Sequence"} if several else feature
    listed.pop("fingerprint", None)  # of the rows as they were


def _add_pandas(listed: Any, name: str, texts: bool, several: bool) -> None:
    kind, numpy = ("unicode", "object") if texts else ("float32", "float32")
    if several:
        kind, numpy = f"list[{kind}]", "object"
    column = {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
    listed["columns"].append(column)


_LISTS: dict[bytes, Callable[[Any, str, bool, bool], None]] = {
    SPARK: _add_spark,
    HUGGING_FACE: _add_hugging_face,
    PANDAS: _add_pandas,
}


def class_names(metadata: Mapping[bytes, bytes] | None, column: str) -> tuple[str, ...]:
    """What the numbers of a column, from 0, stand for, as datasets or Spark ML wrote it; () for nothing."""
    for key, find in ((HUGGING_FACE, _hugging_face_names), (SPARK, _spark_names)):
        try:
            names = find(json.loads((metadata or {})[key]), column)
        except (ValueError, LookupError, TypeError, AttributeError):
            continue
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            return tuple(names)
    return ()


def _hugging_face_names(listed: Any, column: str) -> Any:
    """Those of a ClassLabel, or of a list of them."""
    feature = listed["info"]["features"][column]
    feature = feature[0] if isinstance(feature, list) else feature.get("feature") or feature
    return feature["names"] if feature["_type"] == "ClassLabel" else None


def _spark_names(listed: Any, column: str) -> Any:
    """Those of StringIndexer, whose numbers are float64."""
    return next(field for field in listed["fields"] if field["name"] == column)["metadata"]["ml_attr"]["vals"]
