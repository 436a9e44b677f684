"""Entries of torch's Flight Recorder in the words of a page: ranks read their own, nodes those of frozen ranks."""

from __future__ import annotations

from math import prod
from typing import Any

from . import native

_MAX_NAME = 32  # characters; a page has room for 64 bytes of names in all
# c10::ScalarType's names of dtypes that torch calls otherwise.
_DTYPES = {
    "Bool": "bool", "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64",
    "UInt16": "uint16", "UInt32": "uint32", "UInt64": "uint64", "Half": "float16", "BFloat16": "bfloat16",
    "Float": "float32", "Double": "float64", "ComplexHalf": "complex32", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128", "Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2",
    "Float8_e4m3fnuz": "float8_e4m3fnuz", "Float8_e5m2fnuz": "float8_e5m2fnuz", "Float8_e8m0fnu": "float8_e8m0fnu",
}  # fmt: skip
_OPERATION_CODES = {name: code for code, name in enumerate(native.OPERATIONS)}
_OPERATION_CODES |= {  # operations that recorders call otherwise
    "_all_gather_base": _OPERATION_CODES["all_gather_into_tensor"],
    "_reduce_scatter_base": _OPERATION_CODES["reduce_scatter_tensor"],
    "all_to_all_single": _OPERATION_CODES["all_to_all"],
}
MADE_OF_ALL_REDUCE = {  # functions of torch's whose operation is one of all_reduce to gloo and its recorder
    "reduce_scatter": _OPERATION_CODES["reduce_scatter"],
    "reduce_scatter_single": _OPERATION_CODES["reduce_scatter_tensor"],
    "reduce_scatter_tensor": _OPERATION_CODES["reduce_scatter_tensor"],
    "_reduce_scatter_base": _OPERATION_CODES["reduce_scatter_tensor"],
}
_DTYPE_CODES = {name: code for code, name in enumerate(native.DTYPES)}
_ALIKE = {  # one name in recorders, gloo's at least, and two where the calls are timed
    _OPERATION_CODES["all_gather_into_tensor"]: _OPERATION_CODES["all_gather"],
    native.OPERATIONS.index("all_to_all_single"): _OPERATION_CODES["all_to_all"],
}
_SIZES_DIFFER = {"all_to_all", "scatter", "barrier"}  # between ranks, or on the record of some


def signature(operation: int, dtype: int, numel: int) -> int:
    """A hash of what ranks have to agree on, without the root, which is not always known; 0 and -1: does not count."""
    return native.hash64(f"{operation}|{dtype}|{numel}".encode())


def collective_signature(operation: int, dtype: int, numel: int) -> int:
    """The signature of a collective, whether a recorder or a timed call tells of it."""
    return signature(_ALIKE.get(operation, operation), dtype, numel)


def shown_name(torch_name: str, description: str) -> str:
    """The name of a group in pages."""
    return (description if description not in ("", "undefined") else torch_name)[:_MAX_NAME]


def operation_info(entry: Any, root: int = native.NO_ROOT, function: str = "") -> native.OperationInfo:
    """The operation of an entry of the ring, in the words of a page.

    The ring has neither the root nor the function of torch's that made the entry, which is known of some ranks alone:
    it changes the name, and not the signature.

    An entry that no recorder writes raises ValueError, KeyError, or an error that comes of a wrong type.
    """
    name = entry["profiling_name"].partition(":")[2]
    operation = _OPERATION_CODES.get(name, 0)
    dtypes, sizes = entry["input_dtypes"], entry["input_sizes"]
    dtype = _DTYPE_CODES[_DTYPES.get(dtypes[0], "")] if dtypes else 0
    numel = sum(map(prod, sizes)) if sizes else -1
    if numel >= 1 << 62:  # ctypes would cut it
        raise ValueError("no number of elements")
    agreed = name not in _SIZES_DIFFER
    known = operation != 0
    return native.OperationInfo(
        sequence=entry["collective_seq_id"],
        signature=collective_signature(operation, *((dtype, numel) if agreed else (0, -1))) if known else 0,
        numel=numel,
        operation=MADE_OF_ALL_REDUCE.get(function, operation) if name == "all_reduce" else operation,
        dtype=dtype,
        root=root,
    )
