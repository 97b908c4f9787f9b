"""The functions of `charcnn.ops`, made of the table when they are first used, and the stub that shows them to editors.

A function's parameters are its reference's, shapes in its docstring are those of its shape check, and what its
technique does, and refuses, stands at its launch.
"""

from __future__ import annotations

import inspect
import linecache
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from charcnn.aliases import Array, Function, Record, Stream
from charcnn.gpu.arrays import DTYPES
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common import shapes, shapes2d, shapes_backward, shapes_transformer
from charcnn.ops.common.arrays import host, hosts
from charcnn.ops.operator_row import loaded
from charcnn.ops.table import VARIANTS, Variant, operator
from charcnn.ops.techniques import TECHNIQUES

FUNCTIONS: dict[str, list[Variant]] = {}
"""Rows by function, one a precision."""
for _row in VARIANTS:
    FUNCTIONS.setdefault(_row.function, []).append(_row)

WIDTH = 120

STUB = '''"""What `charcnn.ops` offers: a name loads, with its own module alone, when it is first used.

Written by `python bench/report.py` from charcnn/ops/table.py.
"""

from collections.abc import Sequence

import numpy as np

from charcnn.aliases import Array, Function, Stream
from charcnn.layers.windows import Padding, Pair

from . import chain as chain
from . import reference as reference
from .prepared import prepare as prepare
'''

MEANINGS = {
    "dy": "the gradient of the result",
    "targets": "the share that each class should get: 1 for the label, 0 for all others",
    "ids": "an id of depth or more is blank",
    "tokens": "ids; one that is no row of weight gives zeros",
    "type_ids": "rows of types, all 0 where None; one that is no row gives zeros",
    "lengths": "how many positions of each input count; all where None, or where it is not from 0 to S",
    "offsets": "where each input begins, ascending from 0; the last one is the number of rows",
    "heads": "of a row's queries, keys and values alike",
    "causal": "whether a query sees no key behind its own position",
    "images": "channel after channel",
    "stat": "each input's mean and biased variance",
    "tables": "what each byte stands for, as `pixel_tables` gives it",
    "depth": "values of a one-hot vector",
    "eps": "added to the variance, greater than 0",
    "negative_slope": "factor of what is below 0, from 0 to 1",
    "pieces": "neighbouring channels of which a result is the maximum; divides their number",
    "size": "channels that a value is normalised over, its own in the middle",
    "alpha": "factor of their sum of squares, divided by size",
    "beta: float": "the power",
    "k: float": "added to the sum, greater than 0",
    "height": "of an image",
    "width": "of an image",
    "channels": "of the result; those beyond C are zero; C where None",
    "kernel_size: int": "positions in a window",
    "kernel_size: Pair": "of a window, an int or (vertical, horizontal)",
    "pool_size: int": "positions in a window of the pooling",
    "pool_size: Pair": "of a window of the pooling, an int or (vertical, horizontal)",
    "pool_stride": "from one of these windows to the next, likewise; pool_size where None",
    "stride": "from one window to the next",
    "stride: Pair": "from one window to the next, an int or (vertical, horizontal)",
    "stride: Pair | None": "from one window to the next, an int or (vertical, horizontal); kernel_size where None",
    "stride: int | None": "positions from one window to the next; that window's size where None",
    "padding: int": "positions added at both ends",
    "padding: Padding": 'pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid", "same"',
    "dilation": "from one tap to the next",
    "dilation: Pair": "from one tap to the next, an int or (vertical, horizontal)",
    "groups": "each group's output channels see only its own input channels",
    "strides": "of the first convolution and of the second",
    "paddings": "of the first convolution and of the second",
    "groups: Sequence[int]": "of the first convolution and of the second",
    "count_include_pad": "whether a mean counts padding, as zeros",
}
"""What parameters are, by name, or by name and type where that decides. Of arrays, what their shape does not say."""

PACKED = "as `arrays.pack` gives it"
POOLING = ", of -inf or for a mean zeros, at most half of kernel_size"

PRECISIONS = {
    "fp32": "float32 itself",
    "fp16": "11 bits, infinite beyond 65,504",
    "bf16": "8 bits, float32's range",
    "tf32": "11 bits, float32's range",
    "fp16x3": "two fp16 a number and three products: float32's accuracy, infinite from 65,536 on",
    "fp8": "e4m3, weights and features each scaled to its range, infinities become its greatest",
}


def make(name: str) -> Function:
    """The function of `charcnn.ops` of this name; its launch's module is imported here."""
    rows = FUNCTIONS[name]
    row, of = rows[0], operator(rows[0].operator)
    launch = launch_of(row)
    names: Record = {
        "__name__": "charcnn.ops", "Array": Array, "Function": Function, "Stream": Stream, "Pair": Pair,
        "Padding": Padding, "Sequence": Sequence, "np": np, "shape_of": _check_of(row), "launch": launch, "host": host,
        "hosts": hosts,
    }  # fmt: skip
    if row.device == "cuda":
        from charcnn.ops.common import calls

        names["replay"] = calls.Replay(in_place=row.in_place)
        names["Call"] = (
            calls.ResultsCall if of.results else calls.StatCall if of.stat
            else calls.LabelCall if len(of.dtypes) > 1 else calls.Call
        )  # fmt: skip
    lines = [f"{_signature(rows)}:", *(f"    {line}" for line in _body(row, launch))]
    source, file = "\n".join(lines) + "\n", f"<charcnn.ops.{name}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    exec(compile(source, file, "exec"), names)  # its annotations stay strings, as of this file
    function: Any = names[name]
    function.__doc__ = _documentation(rows) if make.__doc__ else None  # of python -OO
    return function


def launch_of(row: Variant) -> Callable[..., None]:
    """The row's launch; its module is imported here."""
    module, _, name = row.launch.partition(":")
    return loaded(f"charcnn.ops.{module}", name)


def takes_epilogue(launch: Function) -> bool:
    """Whether it is told what follows the sums."""
    return "epilogue" in inspect.signature(launch).parameters


def checked_shape(row: Variant, *arrays: Any, **options: Any) -> Shape:
    """The result's shape, of an operator that has a shape check.

    Raises:
        ValueError: an array's shape, or an option, does not fit; names it.
    """
    check: Any = _check_of(row)
    known = inspect.signature(check).parameters
    shape: Shape = check(*arrays, **{name: value for name, value in options.items() if name in known})
    return shape


def arrays_of(row: Variant) -> int:
    """How many arrays it takes."""
    return sum(map(_is_array, _parameters(row)))


def options_of(row: Variant) -> list[tuple[str, Any]]:
    """What its launch takes behind arrays, with the defaults."""
    return [(one.name, one.default) for one in _parameters(row) if not _is_array(one)]


def stub() -> str:
    """What `charcnn/ops/__init__.pyi` holds."""
    parts, last = [STUB], ""
    for rows in FUNCTIONS.values():
        text = textwrap.indent(f'"""{_documentation(rows)}"""', "    ", lambda line: bool(line.strip()))
        heading, last = "" if rows[0].operator == last else f"# {rows[0].operator}\n\n", rows[0].operator
        parts.append(f"{heading}{_signature(rows)}:\n{text}\n")
    return "\n".join(parts)


HOMES = (shapes, shapes2d, shapes_transformer, shapes_backward)
"""Where shape checks are."""


def _check_of(row: Variant) -> Function | None:
    name = operator(row.operator).shape_check
    if name is None:
        return None
    found = (getattr(home, name or row.operator, None) for home in HOMES)
    return next(filter(None, found))


def _parameters(row: Variant) -> list[inspect.Parameter]:
    """The operator's, as the reference has them."""
    found = inspect.signature(operator(row.operator).reference).parameters.values()
    return [one for one in found if one.name != "dtype" and one.name not in row.left_out]


def _is_array(parameter: inspect.Parameter) -> bool:
    return parameter.annotation in ("Array", "Array | None")


def _signature(rows: Sequence[Variant]) -> str:
    """In as many lines as the formatter gives it."""
    row, cuda = rows[0], rows[0].device == "cuda"
    array = "Array" if cuda else "np.ndarray"
    given: list[str] = []
    keywords: list[str] = []
    for one in _parameters(row):
        kind = one.annotation.replace("Array", array) if _is_array(one) else one.annotation
        default = "" if one.default is one.empty else f" = {one.default!r}"
        (keywords if one.kind is one.KEYWORD_ONLY else given).append(f"{one.name}: {kind}{default}")
    of = operator(row.operator)
    count = len(of.results) or 1 + of.stat
    result = f"tuple[{', '.join([array] * count)}]" if count > 1 else array
    if row.precision:
        keywords.append('precision: str = "fp16"')
    keywords += [
        f"out: {result} | {'' if cuda or of.results else 'Function | '}None = None",
        *["stream: Stream = None"] * cuda,
    ]
    every = [*given, "*", *keywords]
    head, tail = f"def {row.function}(", f") -> {result}"
    for inner in (", ".join(every), f"\n    {', '.join(every)}\n"):
        if max(map(len, f"{head}{inner}{tail}:".splitlines())) <= WIDTH:
            return f"{head}{inner}{tail}"
    return head + "".join(f"\n    {one}," for one in every) + f"\n{tail}"


def _body(row: Variant, launch: Callable[..., None]) -> Iterator[str]:
    """Check shapes, take the arrays, launch, give the result."""
    of, parameters = operator(row.operator), _parameters(row)
    check, given = _check_of(row), [one.name for one in parameters]
    if check is None:
        yield f"return launch({', '.join(given)}, out=out, stream=stream)"
        return
    shape = f"shape_of({', '.join(one for one in inspect.signature(check).parameters if one in given)})"
    arrays, options = ([one.name for one in parameters if _is_array(one) is kind] for kind in (True, False))
    how = [repr(of.results), shape] if of.results else [shape]
    if of.dtypes[0] != "float32":
        how.append(f"np.{of.dtypes[0]}")
    if row.in_place:
        how.append('in_place="x"')
    how += [f"{name}={name}" for name in arrays]
    if row.precision:
        options.append("precision=precision")
    if takes_epilogue(launch):
        options.append(f"epilogue={of.epilogue!r}")
    if row.device == "cpu":
        yield f"out = host{'s' * bool(of.results)}(out, {', '.join(how)})"
        yield f"launch({', '.join(['out', *arrays, *options])})"
        yield "return out"
        return
    optional = [one.name for one in parameters if _is_array(one) and one.default is None]
    passed = [one.name for one in parameters if not _is_array(one)] + ["precision"] * bool(row.precision)
    passed += [f"{name} is None" for name in optional]
    known = ", ".join(f"*[{name}] * ({name} is not None)" if name in optional else name for name in arrays)
    known = f"({known},), ({''.join(f'{name}, ' for name in passed)})"
    if not (several := of.stat or of.results):
        yield f"done = replay.started({known}, out, stream)"
        yield "if done is not None:"
        yield "    return done"
    yield f"call = Call(out, stream, {', '.join(how)})"
    none = [f"*[None] * ({name} is None)" for name in optional]  # they come behind all other arrays
    yield f"launch({', '.join(['call', '*call.inputs', *none, *options])})"
    if not several:
        yield f"replay.keep(call, {known}, out)"
    yield "return call.result()"


def _documentation(rows: Sequence[Variant]) -> str:
    row, launch = rows[0], launch_of(rows[0])
    of, cuda, technique = operator(row.operator), row.device == "cuda", TECHNIQUES[row.technique]
    said, _, errors = (inspect.getdoc(launch) or "").partition("Raises:\n")
    reference = (inspect.getdoc(of.reference) or "").partition("\n\n")[0]
    shown, result = _shapes(row)
    kind = of.dtypes[0]
    second = ", and float64 (N, 2), each input's mean and biased variance" if of.stat else ""
    where = "a pair, " if of.stat else "a tuple, any of it None: " if of.results else ""
    in_place = " (x itself will do)" if row.in_place else ""
    arguments = [_argument(row, one, shown) for one in _parameters(row)]
    if row.precision:
        meanings = "; ".join(f'"{one.precision}", {PRECISIONS[one.precision or ""]}' for one in rows)
        arguments.append(f"precision: str, default 'fp16': what is multiplied: {meanings}.")
    kinds = f"{result}, {kind}" if of.results else f"{' or '.join(of.dtypes)} {result}"
    given = kinds if of.results else f"{kind} {result}"
    gives = "any of them" if of.results else "the first" if of.stat else "it"
    arguments.append(
        f"out: where to write, {where}{kinds}{second}{in_place}; made where None. Or a function that gives "
        f"{gives}, called with a shape and a dtype."
    )
    if cuda:
        arguments.append("stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.")
    more = dict.fromkeys(("ValueError", "DeviceError"), "")
    for line in re.split(r"\n(?=\w+: )", textwrap.dedent(errors).strip()) if errors else ():
        name, _, text = line.partition(": ")
        more[name] = f"; {' '.join(text.split()).rstrip('.')}"
    raised = [f"ValueError: an argument's shape, dtype{', layout or side' if cuda else ' or layout'} does not fit"
              f"{'; precision is none of these' if row.precision else ''}{more['ValueError']}."]  # fmt: skip
    if cuda:
        least = row.capability
        need = f", or one of compute capability below {least[0]}.{least[1]}" if least else ""
        raised.append(f"DeviceError: no usable GPU{need}{more['DeviceError']}.")
    sides = ". All arrays are NumPy's, or all lie on the device, and then nothing waits for the result" if cuda else ""
    return "\n".join(
        [
            f"`reference.{of.name}` by the technique `{row.technique}`.", "",
            *_wrapped(f"{' '.join(reference.split()).rstrip('.')}."), "",
            *_wrapped(f"{technique[0].upper()}{technique[1:]}{sides}."), "",
            *([said.strip(), ""] if said else []),
            "Args:", *(line for one in arguments for line in _wrapped(one, "    ")), "",
            "Returns:", *_wrapped(f"{given}{second}{', where the inputs lie' if cuda else ''}.", "    "), "",
            "Raises:", *(line for one in raised for line in _wrapped(one, "    ")), "",
        ]
    )  # fmt: skip


def _wrapped(text: str, indent: str = "") -> list[str]:
    more = indent + "    " * bool(indent)
    return textwrap.wrap(text, WIDTH - 4, initial_indent=indent, subsequent_indent=more, break_on_hyphens=False)


def _argument(row: Variant, one: inspect.Parameter, shown: dict[str, str]) -> str:
    meaning = MEANINGS.get(f"{one.name}: {one.annotation}") or (
        "" if one.name == "beta" else MEANINGS.get(one.name, "")
    )
    if _is_array(one):
        kind = np.dtype(DTYPES.get(one.name, np.float32)).name
        packed = row.layout == "channels_last" and one.name == "weight"
        shape = f"{kind} {shown.get(one.name, '')}".rstrip()
        meaning = meaning if one.default is one.empty else f"or None, the default: {meaning}"
        parts = [shape, "C-contiguous", PACKED if packed else "", meaning]
        return f"{one.name}: {', '.join(filter(None, parts))}."
    if one.name == "padding":
        meaning += POOLING if "pool" in row.operator and "conv" not in row.operator else ", of zeros"
    default = "" if one.default is one.empty else f", default {one.default!r}"
    return f"{one.name}: {one.annotation}{default}: {meaning}."


def _shapes(row: Variant) -> tuple[dict[str, str], str]:
    """The arrays' shapes, and the result's, as the check's docstring has them: x (N, C), bias (C,) -> (N, C)."""
    text = " ".join((inspect.getdoc(_check_of(row) or operator(row.operator).reference) or "").split())
    several = r"\w+ \(.*?\)(?:, \w+ \(.*?\))+"
    found = re.search(
        rf"((?:\w+(?:(?:, | and )\w+)* \(.*?\)(?: or \(.*?\))*(?:, )?)+) -> ({several}|\(.*?\)(?: or \(.*?\))*)", text
    )
    if found is None:
        raise ValueError(f"{row.name}: no shapes in {text!r}")
    shown: dict[str, str] = {}
    for names, shape in re.findall(r"(\w+(?:(?:, | and )\w+)*) (\([^()]*\)(?: or \([^()]*\))*)", found[1]):
        shown |= dict.fromkeys(re.split(", | and ", names), shape)
    return shown, found[2]
