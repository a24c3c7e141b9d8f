"""The compiled template equals `encode(render)`, token for token, for every tokenizer and kind of template."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.text.compile import compile_template, field_ranges, sample_fields
from nlrl_jax.text.cuts import MAX_OPTIONS
from nlrl_jax.text.pieces import assemble
from nlrl_jax.text.template import Choice, Literal, Number, Repeat, Template
from tests import tokenizers_from_wheels as wheels
from tests.small_sentencepiece import FORMS
from tests.small_sentencepiece import small as small_sentencepiece
from tests.text.observations import compiled_texts, grid, in_chat, point, points

every_tokenizer = wheels.every_tokenizer
NUM_STATES = {"frozen_lake": 500, "snake": 200}


def observation(game, size=4):
    return envs.make(game, size=size).observation


def stack(states):
    return {name: np.stack([state[name] for state in states]) for name in states[0]}


def assert_equals_encode(template, tokenizer, num_states=200, seed=1):
    """Compares jit(vmap(compiled)) with the tokenizer on random and extreme states."""
    compiled = compile_template(template, tokenizer)
    fields = stack(sample_fields(template, num_states, seed))
    tokens, lengths = jax.eval_shape(jax.vmap(compiled), fields)
    assert tokens.shape == (len(compiled_texts(template, tokenizer, fields)), compiled.max_length)
    assert tokens.dtype == lengths.dtype == jnp.int32 and compiled.prefix.dtype == np.int32
    return compiled


# One digit and two, each in one game with every tokenizer; in both games with the first.
BOARDS = {("frozen_lake", 4): True, ("snake", 10): True, ("frozen_lake", 10): False, ("snake", 7): False}


@pytest.mark.parametrize(
    "make, game, size",
    [
        pytest.param(
            *make.values,
            *board,
            id=f"{board[0]}-{board[1]}-{make.id}",
            marks=[*make.marks, *[pytest.mark.slow] * (not with_every and make is not wheels.EVERY[0])],
        )
        for board, with_every in BOARDS.items()
        for make in wheels.EVERY
    ],
)
def test_observations_of_the_paper_in_a_chat(make, game, size):
    tokenizer = make()
    template = in_chat(tokenizer, observation(game, size))
    compiled = assert_equals_encode(template, tokenizer, NUM_STATES[game])
    assert len(compiled.prefix) > 20
    assert compiled.program.base.size < 5 * size * size + 100  # pieces: about one a cell or coordinate


WORDS = Repeat("n", 4, (Choice("w", ("Up", "Down")),), " || ", "-")
LIVES = Repeat("n", 4, (Literal(" <3"),), "", " none")
LINES = Repeat("n", 3, (Literal("- "), Number("w", 0, 20)), "\n")
ACCENTS = Choice("a", ("é", "日本", "→"))
SMALL = {
    "slot alone": Template((Choice("a", ("x", "yy", " z")),)),
    "empty option": Template((Literal("is"), Choice("a", ("", " not")), Literal(" here\n"), Choice("b", ("", "x")))),
    "numbers": Template((Literal("n="), Number("a", -12, 1200), Literal("/"), Number("b", 0, 9))),
    "numbers that touch": Template((Literal("n="), Number("a", 0, 12), Number("b", 0, 12), Literal(" end"))),
    "one field twice": Template((Number("a", 0, 11), Literal(" is "), Choice("a", ("zero", "one"), low=0))),
    "spaces": Template((Choice("a", ("x", "_")), Literal("  "), Choice("b", ("y", "_")), Literal(" \n"))),
    "grid alone": Template(grid(3, ("_", "O", "#"))),
    "list alone": Template((points("p", 3, 11),)),
    "list at the end": Template((Literal("at "), points("p", 3, 3))),
    "list of one": Template((Literal("at ["), points("p", 1, 3, ""), Literal("], then"))),
    "two lists": Template((points("p", 3, 3, ""), Literal("]\n["), points("q", 2, 12, ""), Literal("]\n"))),
    "list of words": Template((WORDS, Literal("\nok"))),
    "list of constants": Template((Literal("Lives:"), LIVES, Literal(" left"))),
    "list of lines": Template((Literal("Boxes:\n"), LINES, Literal("\n"))),
    "not ascii": Template((Literal("où: "), ACCENTS, Literal("日"), Number("b", 0, 3), Literal("ß "))),
    "special tokens": Template((Literal("a<|im_end|>\n"), Choice("a", ("b", "<|im_end|>")), Literal("<|im_end|>"))),
    "count as a number": Template((Number("num_p", 0, 3), Literal(" holes: "), points("p", 3, 3), Literal("."))),
    "constant": Template((Literal("nothing moves"),)),
    "point": Template(point("x", "y", 3)),
}


@every_tokenizer
def test_small_templates(make):
    tokenizer = make()
    for name, template in SMALL.items():
        if name == "constant":
            compiled = compile_template(template, tokenizer)
            assert compiled.prefix.tolist() == tokenizer.encode("nothing moves")
            assert compiled.max_length == 0 and compiled({})[1] == 0
            continue
        compiled = compile_template(template, tokenizer)
        for state in sample_fields(template, 100, seed=2):
            tokens, length = assemble(np, compiled.program, state, tokenizer.pad_id)
            got = [*compiled.prefix, *tokens[:length]]
            assert got == tokenizer.encode(template.render(state)), name


def random_template(rng: random.Random) -> Template:
    """Parts out of strings that splitters find hard, with next to no care for borders."""
    hard = [" ", "\n", "  ", "\n\n", "a", "B", "'s", "12", "7", "(", ")", ", ", ".", "_", "- ", "é", "日本"]
    hard += ["<|im_end|>", "<|im_", "end|>", "\t", "x y", " O", " _\n", "]", "||", "ll", "\r\n", " \n"]
    text = lambda low, high: "".join(rng.choice(hard) for _ in range(rng.randint(low, high)))
    parts = []
    for n in range(rng.randint(1, 4)):
        parts.append(Literal(text(0, 4)))
        kind = rng.random()
        if kind < 0.4:
            parts.append(Choice(f"c{n}", tuple(text(0, 2) for _ in range(rng.randint(1, 4)))))
        elif kind < 0.6:
            parts.append(Number(f"c{n}", rng.choice([-2, 0, 8]), rng.choice([9, 12, 101])))
        else:
            item = [Literal(text(0, 2))]
            for m in range(rng.randint(0, 2)):
                item.append(rng.choice([Number(f"i{n}{m}", 0, 11), Choice(f"i{n}{m}", (text(1, 2), text(1, 2)))]))
                item.append(Literal(text(0, 2)))
            separator, empty = rng.choice([", ", " ", "\n", "", ";"]), rng.choice(["", "none", " _\n", "12"])
            parts.append(Repeat(f"k{n}", rng.randint(0, 4), tuple(item), separator, empty))
    return Template((*parts, Literal(text(0, 4))))


@every_tokenizer
def test_random_templates_are_right_or_refused(make):
    """Never wrong; a refusal comes from looking at the borders, not from the final comparison."""
    tokenizer, compiled_ones = make(), 0
    first = 40 * [one.values[0] for one in wheels.EVERY].index(make)  # each has templates of its own
    for seed in range(first, first + 40):
        template = random_template(random.Random(seed))
        try:
            compiled = compile_template(template, tokenizer)
        except ValueError as error:
            assert "cannot be cut" in str(error), (seed, error)
            continue
        compiled_ones += 1
        for state in sample_fields(template, 20, seed=3):
            tokens, length = assemble(np, compiled.program, state, tokenizer.pad_id)
            assert [*compiled.prefix, *tokens[:length]] == tokenizer.encode(template.render(state)), seed
    assert compiled_ones >= 20


def test_prefix_reaches_up_to_the_first_slot():
    tokenizer = wheels.small_tokenizer()
    compiled = compile_template(observation("frozen_lake"), tokenizer)
    assert tokenizer.decode(compiled.prefix).endswith("Player position: (")


def test_garbage_in_missing_items_is_not_read():
    tokenizer = wheels.small_tokenizer()
    template = "at " + Template((points("p", 3, 3),)) + "\n"
    compiled = compile_template(template, tokenizer)
    fields = {"num_p": 1, "p_x": np.array([2, -7, 99]), "p_y": np.array([3, 1000, -1])}
    tokens, length = compiled(fields)
    assert [*compiled.prefix, *np.asarray(tokens)[:length]] == tokenizer.encode("at (2, 3)\n")
    for number in (2, 4):
        with pytest.raises(ValueError):
            compiled(fields | {"num_p": number})


def test_refusal_shows_the_border():
    words = tuple(f"{n:03x}"[::-1] for n in range(100))
    template = Template((Literal("a"), Choice("left", words), Choice("right", words), Literal("b")))
    with pytest.raises(ValueError, match="cannot be cut between slot 'left' and slot 'right'") as error:
        compile_template(template, wheels.small_tokenizer())
    assert " | " in str(error.value) and "splits as" in str(error.value) and str(MAX_OPTIONS) in str(error.value)


def test_list_that_cannot_be_cut_is_refused():
    template = Template((Literal("x "), Repeat("n", 3, (Choice("w", ("ab", "c")),), "y", "z"), Choice("v", ("d", "e"))))
    with pytest.raises(ValueError, match="cannot be cut between"):
        compile_template(template, wheels.small_tokenizer())


def test_errors_at_trace_time_and_of_contradictory_fields():
    tokenizer = wheels.small_tokenizer()
    compiled = compile_template(Template((Literal("a "), Choice("cells", ("_", "O"), 3))), tokenizer)
    with pytest.raises(KeyError, match="'cells'"):
        compiled({})
    with pytest.raises(ValueError, match="holds 2 values; the template reads 4"):
        compiled({"cells": jnp.zeros(2, int)})
    with pytest.raises(ValueError, match="no value of field 'a'"):
        field_ranges(Template((Number("a", 0, 1), Number("a", 5, 6))))
    with pytest.raises(ValueError, match="drop index"):
        compile_template(Template((Repeat("n", 2, (Number("a", 0, 1, index=0),)),)), tokenizer)


def test_the_device_program_does_not_grow_with_the_grid():
    """A 10x10 grid is a few gathers, like a 3x3 one."""
    tokenizer = wheels.small_tokenizer()
    sizes = []
    for size in (3, 10):
        template = Template(grid(size, ("_", "O")))
        fields = {"cells": jnp.zeros(size * size, int)}
        sizes.append(len(jax.make_jaxpr(compile_template(template, tokenizer))(fields).eqns))
    assert sizes[0] == sizes[1] < 60


@pytest.mark.parametrize(
    ("form", "game", "size"),
    [*((form, "frozen_lake", 3) for form in FORMS), ("first", "snake", 4), ("gemma", "snake", 4)],
)
def test_games_compile_where_tokens_merge_over_the_whole_text(form, game, size):
    tokenizer = small_sentencepiece(form)
    template = in_chat(tokenizer, observation(game, size))
    compiled = compile_template(template, tokenizer)
    for state in sample_fields(template, 100, seed=2):
        tokens, length = assemble(np, compiled.program, state, tokenizer.pad_id)
        assert [*compiled.prefix, *tokens[:length]] == tokenizer.encode(template.render(state))
    assert len(compiled.prefix) > 20 and compiled.program.base.size < 5 * size * size + 100


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [name for name in SMALL if name not in ("constant", "two lists")])
def test_small_templates_where_tokens_merge_over_the_whole_text(form, name):
    tokenizer = small_sentencepiece(form)
    for continues in (False, True):
        compiled = compile_template(SMALL[name], tokenizer, continues)
        for state in sample_fields(SMALL[name], 30, seed=2):
            tokens, length = assemble(np, compiled.program, state, tokenizer.pad_id)
            want = tokenizer.encode(SMALL[name].render(state), continues)
            assert [*compiled.prefix, *tokens[:length]] == want


def test_a_refusal_names_the_token_that_spans_the_border():
    words = tuple(f"{n:03}".translate(str.maketrans("0123456789", "abcdefghij")) + ">" for n in range(100))
    after = tuple(f"</{word}" for word in words)
    template = Template((Literal("a"), Choice("left", words), Literal(" "), Choice("right", after)))
    with pytest.raises(ValueError, match="cannot be cut between slot 'left' and slot 'right'") as error:
        compile_template(template, small_sentencepiece("gemma"))
    assert "the token '>▁</' spans the border" in str(error.value) and "Within pre-tokens" not in str(error.value)


def test_a_text_that_may_begin_with_nothing_needs_another_before_it():
    template = Template((Choice("a", ("", "x")), Choice("b", ("(", ")"))))
    with pytest.raises(ValueError, match="begins with a slot or list that may be empty"):
        compile_template(template, small_sentencepiece("first"))
    for tokenizer, continues in ((small_sentencepiece("first"), True), (small_sentencepiece("gemma"), False)):
        assert compile_template(template, tokenizer, continues).max_length
