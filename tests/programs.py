"""`jax.jit` that knows a function again by what it is made of, so that a second run traces and compiles nothing.

Not for tests that replace what is traced, such as a module's constant: globals are taken to stay.
"""

import dataclasses
import functools
import types

import flax.linen as nn
import jax
import numpy as np
import tokenizers

from nlrl_jax.gymnax_base import environment

MOST_BYTES = 2**24  # of a constant that is compared by its content

_jit = jax.jit
_compiled: dict = {}  # content of a function and its options -> what `jax.jit` made of it
_alive: dict = {}  # id -> what `content` knows by it, so that it stays its own


class Traced(Exception):
    """A function closes over values that are being traced."""


def forget():
    """Drops all functions, and with them the constants that they hold."""
    _compiled.clear()
    _alive.clear()


def jit(function=None, **options):
    """`jax.jit`, whose result for an equal function (see `content`) with equal options is the same object."""
    if function is None:
        return functools.partial(jit, **options)
    try:
        key = content(function), content(options)
    except Traced:
        return _jit(function, **options)
    if key not in _compiled:
        _compiled[key] = _jit(function, **options)
    return _compiled[key]


def content(value, outer=()):
    """What is hashable and equal for things that are traced alike.

    Of a function: its code and the contents of what it closes over. Of frozen data and games: its fields. Everything
    else, such as lists, which tests count in, is equal to itself alone.

    Args:
      outer: ids of what `value` is part of; a function may close over itself.
    """
    if id(value) in outer:
        return "outer", outer.index(id(value))
    part = functools.partial(content, outer=(*outer, id(value)))
    kind = type(value)
    match value:
        case types.FunctionType():
            cells = []
            for cell in value.__closure__ or ():
                try:
                    cells.append(part(cell.cell_contents))
                except ValueError:  # a variable that is assigned later
                    _alive[id(cell)] = cell
                    cells.append(id(cell))
            defaults = part(value.__defaults__), part(value.__kwdefaults__)
            return kind, value.__module__, value.__code__, tuple(cells), *defaults
        case types.MethodType():
            return kind, part(value.__func__), part(value.__self__)
        case functools.partial():
            return kind, part(value.func), part(value.args), part(value.keywords)
        case tuple():
            return kind, tuple(map(part, value))
        case dict() | types.MappingProxyType():
            return kind, tuple((name, part(entry)) for name, entry in value.items())
        case tokenizers.Tokenizer():
            return kind, value.to_str()
        case jax.core.Tracer():
            raise Traced
        case jax.Array() if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return kind, part(jax.random.key_data(value))
        case np.ndarray() | np.generic() | jax.Array() if value.nbytes < MOST_BYTES and value.dtype != object:
            placed = str(getattr(value, "sharding", ""))
            return kind, value.shape, str(value.dtype), placed, np.asarray(value).tobytes()
        case float():
            return kind, repr(value)  # 0.0 and -0.0; nan
        case None | bool() | int() | str() | bytes() | type() | np.dtype():
            return kind, value
        case jax.sharding.Sharding() | jax.sharding.PartitionSpec() | jax.sharding.Mesh():
            return kind, value
    if dataclasses.is_dataclass(value) and (kind.__dataclass_params__.frozen or isinstance(value, nn.Module)):
        return kind, tuple(part(getattr(value, field.name, None)) for field in dataclasses.fields(value))
    if isinstance(value, environment.Environment):
        return kind, part(vars(value))
    _alive[id(value)] = value
    return kind, id(value)
