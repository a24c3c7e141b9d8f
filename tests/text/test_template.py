"""Templates rendered on the host, and what they and their compiled form refuse."""

import functools

import jax
import numpy as np
import pytest

from nlrl_jax.text.compile import compile_template
from nlrl_jax.text.template import Choice, Literal, Number, Repeat, Template
from tests.tokenizers_from_wheels import small_tokenizer

HOLES = Repeat(
    "n", 3, (Literal("("), Number("x", 0, 9), Literal(", "), Number("y", 0, 9), Literal(")")), ", ", empty="none"
)


WALK = Template((Literal("go "), Choice("where", ("up", "down")), Literal(" by "), Number("by", -1, 2)))
CELLS = Template((Choice("cells", ("_", "O"), 0), Choice("cells", ("_", "O"), 1)))
THREE = {"x": [1, 2, 3], "y": [4, 5, 6]}


@pytest.mark.parametrize(
    ("template", "fields", "text"),
    [
        (WALK, {"where": 1, "by": -1}, "go down by -1"),
        (CELLS, {"cells": [0, 1]}, "_O"),  # an index reads one element
        (Template((HOLES,)), {"n": 0, **THREE}, "none"),
        (Template((HOLES,)), {"n": 1, **THREE}, "(1, 4)"),
        (Template((HOLES,)), {"n": 3, **THREE}, "(1, 4), (2, 5), (3, 6)"),
        ("Holes: " + Template((HOLES,)) + ".\n" + CELLS, {"n": 0, "cells": [1, 0], **THREE}, "Holes: none.\nO_"),
    ],
)
def test_templates_are_rendered(template, fields, text):
    assert template.render(fields) == text


def test_errors_name_the_field():
    template = Template((Number("by", 0, 2),))
    with pytest.raises(KeyError, match="'by'"):
        template.render({"other": 1})
    with pytest.raises(ValueError, match="'by' is 3; its slot takes 0 to 2"):
        template.render({"by": 3})
    with pytest.raises(ValueError, match="n is 4; this list holds 0 to 3"):
        Template((HOLES,)).render({"n": 4, "x": [0] * 4, "y": [0] * 4})
    with pytest.raises(ValueError, match=r"range 2\.\.1 is empty"):
        Number("by", 2, 1)
    with pytest.raises(ValueError, match="no options"):
        Choice("by", ())


LINE = Template((Literal("at "), Number("by", 0, 9), Choice("cells", ("_", "O"), 1), Literal(" "), HOLES))
ROW = {"by": 7, "cells": [1, 0], "n": 1, "x": [4, 0, 0], "y": [5, 0, 0]}


@functools.cache
def compiled_line():
    return compile_template(LINE, small_tokenizer())


@pytest.mark.parametrize("make", ["render", "compiled", "traced"])
@pytest.mark.parametrize(
    "changed, message",
    [
        ({"by": [7, 2]}, r"field 'by' has shape \(2,\); a template reads one state, and of it one integer"),
        ({"by": [7]}, r"field 'by' has shape \(1,\); a template reads one state"),
        ({"cells": [[1, 0], [0, 0]]}, r"field 'cells' has shape \(2, 2\); a template reads one state, and of it 2 int"),
        ({"cells": 1}, r"field 'cells' has shape \(\); a template reads one state, and of it 2 integers"),
        ({"cells": [1]}, "field 'cells' holds 1 values; the template reads 2"),
        ({"n": [1]}, r"field 'n' has shape \(1,\)"),
        ({"x": [[4, 0, 0]]}, r"field 'x' has shape \(1, 3\)"),
        ({"by": 7.9}, "field 'by' holds float.*; it must be integers"),
        ({"by": 7.0}, "field 'by' holds float.*; it must be integers"),
        ({"x": [4.0, 0, 0]}, "field 'x' holds float"),
        ({"n": float("nan")}, "field 'n' holds float"),
        ({"by": 10}, "field 'by' is 10; its slot takes 0 to 9"),
        ({"by": -1}, "field 'by' is -1; its slot takes 0 to 9"),
        ({"by": 2**40 + 3}, "field 'by' is .*; its slot takes 0 to 9"),
        ({"x": [-1, 0, 0]}, "field 'x' is -1; its slot takes 0 to 9"),
        ({"n": 4}, "n is 4; this list holds 0 to 3 items"),
        ({"n": -1}, "n is -1; this list holds 0 to 3 items"),
    ],
)
def test_fields_that_are_not_of_one_state_are_refused_alike(changed, message, make):
    fields = {name: np.asarray(value) for name, value in (ROW | changed).items()}
    if make == "traced":
        if " is " in message:
            small = {name: value.clip(-(2**31), 2**31 - 1) for name, value in fields.items()}
            tokens, length = jax.jit(compiled_line())(small)  # clipped: nothing can be raised here
            assert 0 < length <= len(tokens)
            return
        call = functools.partial(jax.eval_shape, compiled_line())
    else:
        call = LINE.render if make == "render" else compiled_line()
    with pytest.raises(ValueError, match=message):
        call(fields)


def test_fields_may_be_lists_booleans_and_more_than_are_read():
    want = "at 7_ (4, 5)"
    for changed in ({}, {"cells": np.array([True, False])}, {"other": "x"}, {"cells": [1, 0, 5]}, {"by": np.uint8(7)}):
        fields = ROW | changed
        assert LINE.render(fields) == want
        tokens, length = compiled_line()(fields)
        assert [*compiled_line().prefix, *np.asarray(tokens)[:length]] == small_tokenizer().encode(want)
    with pytest.raises(KeyError, match="needs the field 'n'"):
        LINE.render({name: value for name, value in ROW.items() if name != "n"})
    for wrong in (lambda: Choice("cells", ("_", "O"), -1), lambda: Repeat("n", -1, ())):
        with pytest.raises(ValueError, match="must be at least 0"):
            wrong()
