"""Python values as JSON text and back, losing nothing that `==` sees. `encode` also runs inside the sandbox, where
this file is pasted before the program; `decode` meets what came out of it, and trusts none of it."""

import json
import numbers


def encode(value: object) -> str:
    return json.dumps(_pack(value))


def decode(text: str) -> object:
    """What `encode` was given. A value of a type that it does not know comes back as an object equal to nothing."""
    return _unpack(json.loads(text))


def _pack(value: object) -> object:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):  # NumPy's too
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, numbers.Number):
        return float(value)  # type: ignore[arg-type]  # a Decimal
    if isinstance(value, bytes | bytearray):
        return {"bytes": list(value)}
    if isinstance(value, list):
        return [_pack(item) for item in value]
    for name, kind in (("tuple", tuple), ("set", (set, frozenset))):
        if isinstance(value, kind):
            return {name: [_pack(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_pack(key), _pack(item)] for key, item in value.items()]}
    if getattr(value, "shape", None) == ():
        return _pack(value.item())  # type: ignore[attr-defined]  # NumPy's own booleans
    return {"object": type(value).__name__}


def _unpack(data: object) -> object:
    if isinstance(data, list):
        return [_unpack(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((name, inner),) = data.items()
    if name == "dict":
        return {_unpack(key): _unpack(item) for key, item in inner}
    if name == "complex":
        return complex(*inner)
    if name in ("tuple", "set", "bytes"):
        return {"tuple": tuple, "set": frozenset, "bytes": bytes}[name](_unpack(item) for item in inner)
    return object()
