"""Templates rendered on the host."""

import pytest

from nlrl_jax.text.template import Choice, Literal, Number, Repeat, Template

HOLES = Repeat(
    "n", 3, (Literal("("), Number("x", 0, 9), Literal(", "), Number("y", 0, 9), Literal(")")), ", ", empty="none"
)


def test_literals_choices_and_numbers():
    template = Template((Literal("go "), Choice("where", ("up", "down")), Literal(" by "), Number("by", -1, 2)))
    assert template.render({"where": 1, "by": -1}) == "go down by -1"


def test_indexed_choice_reads_one_element():
    template = Template((Choice("cells", ("_", "O"), 0), Choice("cells", ("_", "O"), 1)))
    assert template.render({"cells": [0, 1]}) == "_O"


@pytest.mark.parametrize(("n", "text"), [(0, "none"), (1, "(1, 4)"), (3, "(1, 4), (2, 5), (3, 6)")])
def test_lists(n, text):
    assert Template((HOLES,)).render({"n": n, "x": [1, 2, 3], "y": [4, 5, 6]}) == text


def test_templates_and_strings_add():
    template = "Holes: " + Template((HOLES,)) + ".\n" + Template((Literal("end"),))
    assert template.render({"n": 0, "x": [], "y": []}) == "Holes: none.\nend"


def test_errors_name_the_field():
    template = Template((Number("by", 0, 2),))
    with pytest.raises(KeyError, match="'by'"):
        template.render({"other": 1})
    with pytest.raises(ValueError, match="'by' is 3; its slot takes 0 to 2"):
        template.render({"by": 3})
    with pytest.raises(ValueError, match="n is 4; this list holds 0 to 3"):
        Template((HOLES,)).render({"n": 4, "x": [0] * 4, "y": [0] * 4})
    with pytest.raises(ValueError, match="empty"):
        Number("by", 2, 1)
    with pytest.raises(ValueError, match="no options"):
        Choice("by", ())
