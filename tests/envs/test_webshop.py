"""WebShop's pages, search, reward and data, on a shop of four products and on our own catalogue."""

import dataclasses
import itertools
import json
import math
import pathlib
import random
import sys
import types

import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.envs.webshop import catalogue, engine, products, reward, search
from nlrl_jax.envs.webshop.engine import INVALID, Shop, ShopState

FIELDS = ("asin", "name", "pricing", "full_description", "small_description", "customization_options", "query")
BOOTS, WATER = "Shoes › Women › Boots", "Garden › Water › Hoses"
COLOURS = {"Color": [{"value": "Navy Blue"}, {"value": "Red/White "}], "size": [{"value": "9"}]}
PRODUCTS = [
    ("B000000001", "Acme Rubber Boots", "$19.99", "Boots for rain.\nThey last.", ["Waterproof", "easy to clean"],
     COLOURS, "Rain Boots ", BOOTS),
    ("B000000002", "Acme Leather Boots", "$20.00$40.00", None, "soft lining", {}, "rain boots", BOOTS),
    ("B000000003", "Garden Hose", "", "", [], None, "hose", WATER),
    ("nan", "", ""),
    ("B000000001", "The same id again", ""),
]  # fmt: skip
ITEMS = [dict(zip((*FIELDS, "product_category"), row, strict=False)) for row in PRODUCTS]
ATTRIBUTES = {"B000000001": {"attributes": ["water resistant", "easy cleaning"]}}


def ask(text="buy it", attributes=("soft",), options=None):
    return {"instruction": text, "instruction_attributes": attributes, "instruction_options": options}


WISH = "find me boots that are easy to clean in blue"
ROWS = [ask(f"{WISH}.", ["easy clean", "waterproof"], ["sky blue", "9"]), ask("no attributes", [])]
INSTRUCTIONS = {"B000000001": ROWS}


def write(folder, items=ITEMS, attributes=ATTRIBUTES, instructions=INSTRUCTIONS):
    names = (catalogue.ITEMS[0], catalogue.ATTRIBUTES[0], catalogue.INSTRUCTIONS[0])
    for name, data in zip(names, (items, attributes, instructions), strict=True):
        (folder / name).write_text(json.dumps(data))
    return str(folder)


@pytest.fixture
def small(tmp_path):
    return catalogue.load(write(tmp_path))


def test_a_folder_with_webshops_files(small):
    boots, leather, hose = small.products.values()
    assert boots.options == (("color", ("navy blue", "red | white")), ("size", ("9",)))
    assert boots.description == "Boots for rain.\nThey last." and boots.query == "rain boots"
    assert (boots.price, boots.price_tag) == (19.99, "$19.99")
    assert 20 <= leather.price <= 40 and leather.price_tag == "$20.0 to $40.0"
    assert (hose.price, hose.price_tag) == (100.0, "$100.0")  # WebShop's rule for a product without a price
    (goal,) = small.tasks
    assert goal.price_upper in (30.0, 40.0, 50.0)  # the larger of two of 20, 30, 40, 50
    assert goal.instruction == f"{WISH}, and price lower than {goal.price_upper:.2f} dollars"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": None}, "product B000000009 has no title"),
        ({"name": ["Boots"]}, "the name of product B000000009 is"),
        ({"pricing": 9.99}, "the pricing of product B000000009 is 9.99"),
        ({"pricing": "$"}, "the pricing of product B000000009"),
        ({"customization_options": {"size": [None]}}, "an option None without a value"),
        ({"customization_options": {"size": "XL"}}, "an option 'XL' without a value"),
        ({"customization_options": ["9"]}, "must be a table"),
        ({"small_description": [["soft"]]}, "the small_description of product B000000009"),
        ({"asin": "B000000001"}, "has the same asin as another, B000000001"),
        ({"asin": "B0000000011"}, "has the asin 'B0000000011'"),
        ({"asin": None}, "product 3 has no asin"),
    ],
)
def test_products_that_cannot_be_read_are_skipped_and_counted(tmp_path, change, reason):
    folder = write(tmp_path, [*ITEMS[:3], {**ITEMS[0], "asin": "B000000009", **change}])
    with pytest.warns(UserWarning, match="1 of the products are skipped"):
        found = catalogue.load(folder)
    assert len(found.products) == 3 and len(found.tasks) == 1
    assert [reason in one for one in found.skipped["products"]] == [True]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"items": [ITEMS[0] | {"name": " "}, *ITEMS[1:3]]}, "product B000000001 has no title"),
        ({"items": [ITEMS[0] | {"asin": "B000000009"}]}, "no instruction is about one of its 1 products"),
        ({"attributes": {"B000000001": ["soft"]}}, "the attributes of product B000000001 are"),
        ({"instructions": {"B000000001": ["buy"]}}, "instruction 0 about product B000000001 is 'buy'"),
        ({"instructions": {"B000000001": [ask("")]}}, "instruction 0 about product B000000001 has no text"),
    ],
)
def test_folders_in_which_nothing_can_be_played_say_why(tmp_path, files, says):
    with pytest.raises(ValueError, match=says):
        catalogue.load(write(tmp_path, **files))


def test_products_may_lack_all_but_id_and_name():
    lacking = [{field: value} for field in ITEMS[0] if field not in ("asin", "name") for value in (None, math.nan)]
    partly = [{"small_description": [None, "soft"]}, {"customization_options": {"color": None, "size": []}}]
    for change in (*lacking, *partly, {"name": 501}):
        item = json.loads(json.dumps({**ITEMS[0], **change}), parse_constant=lambda _: None)
        (product, *_), _, skipped = catalogue.read([item], {}, INSTRUCTIONS, "here")
        assert product == "B000000001" and not skipped["products"], change


def test_halves_of_characters_are_marked(tmp_path):
    colours = {"Col\ud83dour": [{"value": "red \udc00"}]}
    found = catalogue.load(write(tmp_path, [{**ITEMS[0], "name": "Boots \ud83d", "customization_options": colours}]))
    (product,) = found.products.values()
    assert (product.title, product.options) == ("Boots \ufffd", (("col\ufffdour", ("red \ufffd",)),))


def test_instructions_that_cannot_be_played_are_skipped_and_counted():
    rows = [ask(), None, "buy", {}, ask(None), ask(options="red"), ask(attributes=[None]), ask(attributes="soft")]
    gone = {"B000000077": [ask()] * 2, "B000000078": None}
    _, ((goal,),), skipped = catalogue.read(ITEMS[:1], {}, {"B000000001": rows, **gone}, "here")
    assert goal.attributes == ("soft",) and goal.options == () and len(skipped["instructions"]) == 7 + 2


def test_tasks_of_a_folder_are_the_originals_in_its_order(tmp_path):
    rows = [ask(f"number {i}") for i in range(600)]
    folder = write(tmp_path, ITEMS[:1], instructions={"B000000001": rows})
    order = list(range(600))
    random.Random(233).shuffle(order)  # web_agent_text_env.SimServer
    found = catalogue.load(folder)
    assert [goal.instruction.partition(",")[0] for goal in found.tasks] == [f"number {i}" for i in order[:500]]
    game = envs.make_host("webshop", data=folder)
    assert game.limits == {"": 500}
    run = lambda seed: [start.goal for start in game.reset([("", seed * 10_000 + i) for i in range(500)])]
    goals = [goal.instruction for goal in found.tasks]
    assert run(0) == goals and run(1) != goals and sorted(run(1)) == sorted(goals)  # each once


def test_folders_that_are_not_webshops_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        catalogue.load(str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="has no items_shuffle_1000.json"):
        catalogue.load(str(tmp_path))
    file = pathlib.Path(write(tmp_path)) / catalogue.ITEMS[0]
    damaged = [(content, "is not JSON") for content in (b"[1, 2", b"\xff\xfe", b"", b"[" * 100_000)]
    for content, says in [(b"{}", "must be a list of products"), (b"[]", "it is list with 0 entries"), *damaged]:
        file.write_bytes(content)
        with pytest.raises(ValueError, match=says):
            catalogue.load(str(tmp_path))
    file.write_text("\ufeff" + json.dumps(ITEMS), encoding="utf-8")  # Windows' mark
    assert len(catalogue.load(str(tmp_path)).tasks) == 1


def test_search_is_lucenes_bm25():
    texts = ["red boots boots", "a red hat", "running shoes for the rain and the boots of rain", "blue", "", "the"]
    index = search.Index(texts)
    lengths = [3, 2, 5, 1]  # without stop words; what is empty then does not count
    norm = lambda i: 0.9 * (1 - 0.4 + 0.4 * lengths[i] / (11 / 4))
    idf = lambda n: math.log(1 + (4 - n + 0.5) / (n + 0.5))
    expected = [idf(2) / (1 + norm(0)) + idf(2) * 2 / (2 + norm(0)), idf(2) / (1 + norm(1)), idf(2) / (1 + norm(2))]
    np.testing.assert_allclose(index.scores("red boot"), [*expected, 0, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(index.scores("red RED")[1], 2 * expected[1], rtol=1e-6)  # as often as it is asked for
    assert index.search("red boot") == [0, 1, 2]
    assert index.search("zebra") == [] == index.search("the") == search.Index([]).search("red")


def test_equals_are_ordered_by_id_as_anserini_does():
    texts, ids = ["red boots", "red boots", "red boots", "red red boots", "blue"], ["B3", "B10", "B2", "B4", "B0"]
    assert search.Index(texts, ids).search("red") == [3, 1, 2, 0]  # ids as texts
    assert search.Index(texts, ids).search("red", limit=2) == [3, 1]
    items = [{**ITEMS[0], "asin": asin} for asin in ("B000000009", "B000000001", "B00000000A")]
    products, goals, _ = catalogue.read(items, {}, INSTRUCTIONS, "here")
    shop = Shop(catalogue.Catalogue(products, tuple(goals[0]), ()))
    assert shop.step(ShopState(goals[0][0]), "search[boots]").state.hits == tuple(sorted(products))


# (a, b, what thefuzz 0.22.1 gives: it deletes code points 128 to 255, and keeps those above)
RATIOS = [
    ("Navy Blue", "navy-blue!", 100), ("gluten free", "sugar free", 57), ("!!", "?", 0),
    ("cotton", "organic cotton", 100), ("café au lait", "cafe au lait", 96), ("leather sole", "rubber sole", 61),
    ("easy to clean", "easy clean", 100), ("long lasting", "lasting long long", 100), ("12 oz", "12oz", 89),
    ("water resistant", "waterproof", 40), ("men’s shoes", "mens shoes", 95), ("easy’clean", "easyclean", 53),
    ("non‑slip sole", "non slip sole", 100), ("3–4 years", "34 years", 94), ("½ inch", "1/2 inch", 100),
    ("naïve", "nave", 100), ("中文", "中文", 100), ("–", "‑", 0), ("essential oil", "essential oils", 96),
    ("pack of 1", "pack of 12", 95), ("3 ounce", "8 ounce", 86), ("x-large", "xx-large", 93),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "expected"), RATIOS)
def test_ratios_are_thefuzzs(a, b, expected):
    assert reward.ratio(a, b) == reward.ratio(b, a) == expected


def test_reward_by_hand(small):
    (boots, leather, hose), (goal,) = small.products.values(), small.tasks
    # "easy clean" is like "easy cleaning", "waterproof" stands in a feature, both blues are blue; the size, the price
    assert reward.score(goal, boots, ["navy blue", "9"]) == 1
    assert reward.score(goal, boots, ["red | white", "9"]) == pytest.approx(4 / 5)
    assert reward.score(goal, boots, []) == pytest.approx(3 / 5)
    # the same query, no attribute, no options; its price decides
    assert reward.score(goal, leather, []) == pytest.approx((leather.price <= goal.price_upper) / 5)
    assert reward.score(goal, hose, ["9"]) == 0


def test_kinds_of_products():
    by = lambda title, query, path: catalogue.Product("", title, "", (), (), (), 1.0, "$1", query, path)
    goal = by("alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo", "q", "a › b › c")
    cases = [
        ("alpha bravo charlie", "x", "x", 1.0),  # 3 of 11 nouns
        ("alpha bravo", "x", "x", 0.5),  # 2 of 11
        ("alpha bravo", "q", "x", 1.0),
        ("alpha bravo", "x", "c › z › a", 1.0),
        ("alpha bravo", "x", "c › c › z", 0.5),
        ("alpha", "q", "x", 0.1),  # 1 of 11, less than a tenth
        ("zulu", "q", "x", 0.0),
    ]
    for title, query, path, kind in cases:
        assert reward.kind_reward(by(title, query, path), goal) == kind, (title, query, path)
    assert reward.kind_reward(by("alpha bravo", "", "x"), dataclasses.replace(goal, query="")) == 1.0  # equal, as there
    assert reward.kind_reward(goal, by("the 42", "q", "")) == 1.0  # no nouns: 0.2, and the same query
    assert reward.kind_reward(goal, by("the 42", "other", "")) == 0.5


# What spaCy 3.8's en_core_web_sm tags as nouns and names.
NOUNS = "Mens D.O.N. Issue Gca Basketball Sneakers Shoes Casual Off White"
TAGGED = {
    "Mens D.O.N. Issue 2 Gca Basketball Sneakers Shoes Casual - Off White": NOUNS,
    "Black Basketball": "Black Basketball",
    "Casual running": "Casual",
}


def tagger(name):
    """Stands in for `spacy.load`."""
    if name != "en_core_web_sm":
        raise OSError(f"[E050] Can't find model '{name}'.")
    word = lambda text, noun: types.SimpleNamespace(text=text, pos_="PROPN" if noun else "VERB")
    return lambda title: [word(text, text in TAGGED.get(title, "").split()) for text in title.split()]


def test_nouns_by_a_tagger(monkeypatch, small):
    monkeypatch.setitem(sys.modules, "spacy", types.SimpleNamespace(load=tagger))
    goal, black, casual = TAGGED
    tagged = reward.tagged_by("en_core_web_sm")
    assert tagged(goal) == TAGGED[goal].lower().split()
    by = lambda title: catalogue.Product("", title, "", (), (), (), 1.0, "$1", title, "x")
    kind = lambda title, nouns: reward.kind_reward(by(title), by(goal), nouns)
    assert kind(black, tagged) == 0.5 and kind(casual, tagged) == 0.5  # one of ten nouns each
    assert kind(casual, reward.nouns) == 0.0  # "casual" is none of the word list's
    (task,) = small.tasks
    assert Shop(small, tagged).score(task, task.product, ["navy blue", "9"]) == 1.0
    assert envs.make_host("webshop", tagger="en_core_web_sm").score == "score"
    with pytest.raises(ValueError, match="--webshop_tagger is 'en_core_web_xx', but spaCy cannot load it.*download"):
        reward.tagged_by("en_core_web_xx")
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(ValueError, match="spaCy is not installed: pip install spacy"):
        reward.tagged_by("en_core_web_sm")


def visit(shop, state, *actions):
    """What each action leads to."""
    found = []
    for action in actions:
        found.append(shop.step(state, action))
        state = found[-1].state
    return found


def test_a_visit(small):
    shop, state = Shop(small), ShopState(small.tasks[0])
    assert shop.observe(state) == "[Search]"
    actions = ["search[rubber boots]", " click[b000000001]", "click[Navy Blue]", "click[Features]", "click[< Prev]"]
    results, item, chosen, features, back, bought = visit(shop, state, *actions, "click[Buy Now]")
    assert results.observation.startswith(
        "[Back to Search] Page 1 (Total results: 2) [B000000001] Acme Rubber Boots $19.99 [B000000002] "
    )
    assert " ".join(results.observation.split()) == results.observation
    assert item.observation == (
        "[Back to Search] [< Prev] color [navy blue][red | white] size [9] Acme Rubber Boots Price: $19.99 "
        "Rating: N.A. [Description] [Features] [Reviews] [Buy Now]"
    )
    assert chosen.observation == "You have clicked navy blue."
    assert features.observation == "[Back to Search] [< Prev] Waterproof easy to clean"
    assert "color [[navy blue]][red | white]" in back.observation
    assert bought.observation == "Your score (min 0.0, max 1.0): 0.8"
    assert (bought.state.page, bought.reward, bought.valid) == (engine.DONE, pytest.approx(0.8), True)
    # an earlier state is still what it was
    assert shop.step(item.state, "click[Buy Now]").reward == pytest.approx(0.6)
    # going back forgets the options
    assert visit(shop, back.state, "click[< Prev]", "click[B000000001]")[-1].observation == item.observation
    assert shop.step(back.state, "click[Back to Search]").state == state


def test_impossible_actions_change_nothing(small):
    shop, state = Shop(small), ShopState(small.tasks[0])
    buttons = ["click[Buy Now]", "click[B000000001]", "click[Next >]"]
    for action in ("", "buy", "search", "search[]", "search[ ]", "go[x]", *buttons):
        assert shop.step(state, action) == (state, INVALID, 0.0, False), action


def test_an_action_is_read_in_other_forms(small):
    shop, state = Shop(small), ShopState(small.tasks[0])
    plain, wrapped = (shop.step(state, text) for text in ("search[red shoes]", "1. `Search [red  shoes]`."))
    assert wrapped == plain and plain.valid


def test_pages_of_results_and_a_query_with_nothing_found():
    shop, state = Shop(catalogue.load("")), ShopState(catalogue.load("").tasks[0])
    nothing = shop.step(state, "search[zzyzx]")
    assert nothing.observation == "[Back to Search] Page 1 (Total results: 0)"
    assert not shop.step(nothing.state, "search[shoes]").valid  # only on the search page
    page = shop.step(state, "search[shoes color]")
    for number in range(2, 6):
        page = shop.step(page.state, "click[Next >]")
        assert page.observation.startswith(f"[Back to Search] Page {number} (Total results: 50) [< Prev]")
        first = 10 * (number - 1)
        assert all(f"[{asin}]" in page.observation for asin in page.state.hits[first : first + 3])
    assert not shop.step(page.state, "click[Next >]").valid
    assert shop.step(page.state, f"click[{page.state.hits[49]}]").valid  # on the page, though not shown
    assert not shop.step(page.state, f"click[{page.state.hits[0]}]").valid


def test_our_catalogue(tmp_path):
    own = catalogue.load("")
    assert len(own.products) >= 500 and len(own.tasks) >= 200
    assert products.records() == products.records() != products.records(1)
    shop, first = Shop(own), []
    for goal in own.tasks:
        results = shop.step(ShopState(goal), f"search[{goal.instruction.split(', and price')[0]}]")
        first.append(visit(shop, results.state, f"click[{results.state.hits[0]}]", "click[Buy Now]")[-1].reward)
    assert 0.3 < np.mean(first) < 0.6
    products.main([str(tmp_path)])
    written = catalogue.load(str(tmp_path))
    assert set(own.tasks) < set(written.tasks) and written.products == own.products
    for kind in products.KINDS:  # options are told apart
        for values in (*kind.options.values(), kind.attributes):
            for a, b in itertools.combinations(values, 2):
                assert reward.options_met([a], [b]) == 0, (kind.name, a, b)


def test_the_game_of_the_host(tmp_path):
    game = envs.make_host("webshop")
    assert game.max_steps == 15 and game.score and game.reversible and game.actions == ()
    assert game.reset([("", 7)]) == game.reset([("", 7)])
    for seed in (0, 1, 7):  # each instruction comes once in a run of any seed
        goals = [start.goal for start in game.reset([("", seed * 10_000 + i) for i in range(game.limits[""])])]
        assert sorted(goals) == sorted(goal.instruction for goal in catalogue.load("").tasks)
    small = envs.make_host("webshop", max_steps=4, data=write(tmp_path))
    assert small.max_steps == 4
    states = [small.reset([("", 5)])[0].state]
    for action in ("search[rubber boots]", "click[B000000001]", "pay"):
        (wrong,) = small.step([states[-1]], [action])
        states.append(wrong.state)
    assert (wrong.state, wrong.valid, wrong.done) == (states[-2], False, False)
    (bought,) = small.step([wrong.state], ["click[Buy Now]"])
    assert (bought.done, bought.success, bought.reward) == (True, False, pytest.approx(0.6))
