"""WebShop's pages, search, reward and data, on a shop of four products and on our own catalogue."""

import dataclasses
import itertools
import json
import math
import random
import sys
import types

import numpy as np
import pytest

import envs
from envs.webshop import catalogue, engine, products, reward, search
from envs.webshop.engine import INVALID, Shop, State

ITEMS = [
    {
        "asin": "B000000001",
        "name": "Acme Rubber Boots",
        "pricing": "$19.99",
        "full_description": "Boots for rain.\nThey last.",
        "small_description": ["Waterproof", "easy to clean"],
        "customization_options": {"Color": [{"value": "Navy Blue"}, {"value": "Red/White "}], "size": [{"value": "9"}]},
        "query": "Rain Boots ",
        "product_category": "Shoes › Women › Boots",
    },
    {
        "asin": "B000000002",
        "name": "Acme Leather Boots",
        "pricing": "$20.00$40.00",
        "full_description": None,
        "small_description": "soft lining",
        "customization_options": {},
        "query": "rain boots",
        "product_category": "Shoes › Women › Boots",
    },
    {
        "asin": "B000000003",
        "name": "Garden Hose",
        "pricing": "",
        "full_description": "",
        "small_description": [],
        "customization_options": None,
        "query": "hose",
        "product_category": "Garden › Water › Hoses",
    },
    {"asin": "nan", "name": "", "pricing": ""},
    {"asin": "B000000001", "name": "The same id again", "pricing": ""},
]
ATTRIBUTES = {"B000000001": {"attributes": ["water resistant", "easy cleaning"]}}
INSTRUCTIONS = {
    "B000000001": [
        {
            "instruction": "find me boots that are easy to clean in blue.",
            "instruction_attributes": ["easy clean", "waterproof"],
            "instruction_options": ["sky blue", "9"],
        },
        {"instruction": "no attributes", "instruction_attributes": [], "instruction_options": []},
    ]
}


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
    assert goal.instruction == (
        f"find me boots that are easy to clean in blue, and price lower than {goal.price_upper:.2f} dollars"
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda one: one | {"name": " "}, "product B000000001 has no title"),
        (lambda one: one | {"pricing": "cheap"}, "pricing of product B000000001 is 'cheap'"),
        (lambda one: one | {"pricing": "$"}, "pricing of product B000000001"),
        (lambda one: {"name": "x"}, "product 0 has no asin"),
        (lambda one: one | {"customization_options": {"size": ["9"]}}, "option '9' without a value"),
        (lambda one: one | {"customization_options": ["9"]}, "must be a table"),
        (lambda one: one | {"asin": "B000000009"}, "no instruction is about one of its"),
    ],
)
def test_products_that_do_not_load_are_named(tmp_path, change, says):
    items = [change(ITEMS[0]), *ITEMS[1:3]]
    with pytest.raises(ValueError, match=says):
        catalogue.load(write(tmp_path, items))


def test_attributes_and_instructions_that_do_not_load_are_named(tmp_path):
    asin = "B000000001"
    with pytest.raises(ValueError, match="the attributes of product B000000001 are"):
        catalogue.load(write(tmp_path, attributes={asin: ["soft"]}))
    with pytest.raises(ValueError, match="instruction 0 about product B000000001 is 'buy'"):
        catalogue.load(write(tmp_path, instructions={asin: ["buy"]}))
    with pytest.raises(ValueError, match="instruction 0 about product B000000001 has no text"):
        catalogue.load(write(tmp_path, instructions={asin: [{"instruction_attributes": ["soft"]}]}))


GOOD_ROW = {"instruction": "buy it", "instruction_attributes": ["soft"], "instruction_options": None}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": None}, "product B000000009 has no title"),
        ({"name": math.nan}, "product B000000009 has no title"),
        ({"name": ["Boots"]}, "the name of product B000000009 is"),
        ({"pricing": 9.99}, "the pricing of product B000000009 is 9.99"),
        ({"customization_options": {"size": [None]}}, "an option None without a value"),
        ({"customization_options": {"size": "XL"}}, "an option 'XL' without a value"),
        ({"small_description": [["soft"]]}, "the small_description of product B000000009"),
        ({"product_category": {"a": 1}}, "the product_category of product B000000009"),
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
    "change",
    [
        {"pricing": None}, {"pricing": math.nan}, {"query": None}, {"product_category": None},
        {"full_description": None}, {"small_description": None}, {"small_description": [None, "soft"]},
        {"customization_options": None}, {"customization_options": {"color": None, "size": []}}, {"name": 501},
    ],
)  # fmt: skip
def test_products_may_lack_all_but_id_and_name(change):
    (product, *_), _, skipped = catalogue.read(
        [{**ITEMS[0], **json.loads(json.dumps(change), parse_constant=lambda _: None)}], {}, INSTRUCTIONS, "here"
    )
    assert product == "B000000001" and not skipped["products"]


def test_instructions_that_cannot_be_played_are_skipped_and_counted():
    rows = [GOOD_ROW, None, "buy", {}, GOOD_ROW | {"instruction": None}, GOOD_ROW | {"instruction_options": "red"}]
    rows += [GOOD_ROW | {"instruction_attributes": [None]}, GOOD_ROW | {"instruction_attributes": "soft"}]
    gone = {"B000000077": [GOOD_ROW] * 2, "B000000078": None}
    _, ((goal,),), skipped = catalogue.read(ITEMS[:1], {}, {"B000000001": rows, **gone}, "here")
    assert goal.attributes == ("soft",) and goal.options == () and len(skipped["instructions"]) == 7 + 2


def test_tasks_of_a_folder_are_the_originals_in_its_order(tmp_path):
    rows = [GOOD_ROW | {"instruction": f"number {i}"} for i in range(600)]
    folder = write(tmp_path, ITEMS[:1], instructions={"B000000001": rows})
    order = list(range(600))
    state = random.getstate()
    random.seed(233)  # web_agent_text_env.SimServer
    random.shuffle(order)
    random.setstate(state)
    text = lambda goal: goal.instruction.partition(",")[0]
    found = catalogue.load(folder)
    assert [text(goal) for goal in found.tasks] == [f"number {i}" for i in order[:500]]
    game = envs.make_host("webshop", data=folder)
    assert game.limits == {"": 500}
    run = lambda seed: [start.goal for start in game.reset([("", seed * 10_000 + i) for i in range(500)])]
    goals = [goal.instruction for goal in found.tasks]
    assert run(0) == goals and run(1) != goals and sorted(run(1)) == sorted(goals)  # each once


def test_our_own_instructions_come_once_in_a_run_of_any_seed():
    game = envs.make_host("webshop")
    for seed in (0, 1, 7):
        starts = game.reset([("", seed * 10_000 + i) for i in range(game.limits[""])])
        assert len({id(start.state.goal) for start in starts}) == game.limits[""]


def test_folders_that_are_not_webshops_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        catalogue.load(str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="has no items_shuffle_1000.json"):
        catalogue.load(str(tmp_path))
    write(tmp_path)
    (tmp_path / catalogue.ITEMS[0]).write_text("{}")
    with pytest.raises(ValueError, match="must be a list of products"):
        catalogue.load(str(tmp_path))
    for damaged in (b"[1, 2", b"\xff\xfe", b""):
        (tmp_path / catalogue.ITEMS[0]).write_bytes(damaged)
        with pytest.raises(ValueError, match="is not JSON"):
            catalogue.load(str(tmp_path))
    (tmp_path / catalogue.ITEMS[0]).write_text("[]")
    with pytest.raises(ValueError, match="it is list with 0 entries"):
        catalogue.load(str(tmp_path))
    (tmp_path / catalogue.ITEMS[0]).write_text("\ufeff" + json.dumps(ITEMS), encoding="utf-8")  # Windows' mark
    assert len(catalogue.load(str(tmp_path)).tasks) == 1


def test_search_is_lucenes_bm25():
    texts = ["red boots boots", "a red hat", "running shoes for the rain and the boots of rain", "blue"]
    index = search.Index(texts)
    assert search.terms("The Running men's shoes, 3.5 inches!") == ["run", "men", "shoe", "3.5", "inch"]
    lengths = [3, 2, 5, 1]  # without stop words
    norm = lambda i: 0.9 * (1 - 0.4 + 0.4 * lengths[i] / (11 / 4))
    idf = lambda n: math.log(1 + (4 - n + 0.5) / (n + 0.5))
    expected = [idf(2) / (1 + norm(0)) + idf(2) * 2 / (2 + norm(0)), idf(2) / (1 + norm(1)), idf(2) / (1 + norm(2)), 0]
    np.testing.assert_allclose(index.scores("red boot"), expected, rtol=1e-12)
    assert index.search("red boot") == [0, 1, 2]
    assert index.search("zebra") == [] == index.search("the")


def test_equals_are_ordered_by_id_as_anserini_does():
    texts, ids = ["red boots", "red boots", "red boots", "red red boots", "blue"], ["B3", "B10", "B2", "B4", "B0"]
    assert search.Index(texts, ids).search("red") == [3, 1, 2, 0]  # ids as texts
    assert search.Index(texts, ids).search("red", most=2) == [3, 1]
    items = [{**ITEMS[0], "asin": asin} for asin in ("B000000009", "B000000001", "B00000000A")]
    products, goals, _ = catalogue.read(items, {}, INSTRUCTIONS, "here")
    shop = Shop(catalogue.Catalogue(products, tuple(goals[0]), ()))
    found = shop.step(State(goals[0][0]), "search[boots]").state.hits
    assert found == ("B000000001", "B000000009", "B00000000A")


def test_long_documents_have_four_significant_bits():
    # 24 + (n - 24 rounded down to four bits), as one byte holds it
    known = {0: 0, 39: 39, 40: 40, 41: 40, 42: 42, 57: 56, 100: 96, 104: 104, 1000: 984}
    assert {length: search.rounded_length(length) for length in known} == known


# (a, b, what thefuzz 0.22.1 gives: it deletes code points 128 to 255, and keeps those above)
RATIOS = [
    ("essential oil", "essential oils", 96),
    ("pack of 1", "pack of 12", 95),
    ("Navy Blue", "navy-blue!", 100),
    ("gluten free", "sugar free", 57),
    ("cotton", "organic cotton", 100),
    ("3 ounce", "8 ounce", 86),
    ("x-large", "xx-large", 93),
    ("!!", "?", 0),
    ("café au lait", "cafe au lait", 96),
    ("easy to clean", "easy clean", 100),
    ("leather sole", "rubber sole", 61),
    ("long lasting", "lasting long long", 100),
    ("12 oz", "12oz", 89),
    ("water resistant", "waterproof", 40),
    ("men’s shoes", "mens shoes", 95),
    ("easy’clean", "easyclean", 53),
    ("non‑slip sole", "non slip sole", 100),
    ("3–4 years", "34 years", 94),
    ("½ inch", "1/2 inch", 100),
    ("naïve", "nave", 100),
    ("中文", "中文", 100),
    ("–", "‑", 0),
]


@pytest.mark.parametrize(("a", "b", "expected"), RATIOS)
def test_ratios_are_thefuzzs(a, b, expected):
    assert reward.ratio(a, b) == reward.ratio(b, a) == expected


def test_reward_by_hand(small):
    boots, leather, hose = small.products.values()
    (goal,) = small.tasks
    # "easy clean" is like "easy cleaning", "waterproof" stands in a feature, both blues are blue; the size, the price
    assert reward.score(goal, boots, ["navy blue", "9"]) == (1.0, 1.0, 1.0, 1.0, True)
    assert reward.score(goal, boots, ["red | white", "9"]).reward == pytest.approx(4 / 5)
    assert reward.score(goal, boots, []).reward == pytest.approx(3 / 5)
    # the same query, no attribute, no options; its price decides
    assert reward.score(goal, leather, []).reward == pytest.approx((leather.price <= goal.price_upper) / 5)
    assert reward.score(goal, hose, ["9"]) == (0.0, 0.0, 0.0, 0.5, False)


def test_kinds_of_products():
    by = lambda title, query, path: catalogue.Product("", title, "", (), (), (), 1.0, "$1", query, path)
    goal = by("alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo", "q", "a › b › c")
    kind = lambda title, query="x", path="x": reward.kind_reward(by(title, query, path), goal)
    assert kind("alpha bravo charlie") == 1.0  # 3 of 11 nouns
    assert kind("alpha bravo") == 0.5  # 2 of 11
    assert kind("alpha bravo", query="q") == 1.0
    assert kind("alpha bravo", path="c › z › a") == 1.0
    assert kind("alpha bravo", path="c › c › z") == 0.5
    assert kind("alpha", query="q") == 0.1  # 1 of 11, less than a tenth
    assert kind("zulu", query="q") == 0.0
    assert reward.kind_reward(by("alpha bravo", "", "x"), dataclasses.replace(goal, query="")) == 1.0  # equal, as there
    assert reward.kind_reward(goal, by("the 42", "q", "")) == 1.0  # no nouns: 0.2, and the same query
    assert reward.kind_reward(goal, by("the 42", "other", "")) == 0.5


# What spaCy 3.8's en_core_web_sm tags as nouns and names.
TAGGED = {
    "Mens D.O.N. Issue 2 Gca Basketball Sneakers Shoes Casual - Off White": (
        "Mens D.O.N. Issue Gca Basketball Sneakers Shoes Casual Off White"
    ),
    "Black Basketball": "Black Basketball",
    "Casual running": "Casual",
}


def test_nouns_by_a_tagger(monkeypatch, small):
    def load(name):
        if name != "en_core_web_sm":
            raise OSError(f"[E050] Can't find model '{name}'.")
        noun = types.SimpleNamespace(text="Shoes", pos_="NOUN")
        tokens = lambda title: [
            types.SimpleNamespace(text=word, pos_="PROPN" if word in TAGGED[title].split() else "VERB")
            for word in title.split()
        ]
        return lambda title: tokens(title) if title in TAGGED else [noun]

    monkeypatch.setitem(sys.modules, "spacy", types.SimpleNamespace(load=load))
    goal, black, casual = TAGGED
    tagged = reward.tagged_by("en_core_web_sm")
    assert tagged(goal) == TAGGED[goal].lower().split()
    by = lambda title: catalogue.Product("", title, "", (), (), (), 1.0, "$1", title, "x")
    kind = lambda title, nouns: reward.kind_reward(by(title), by(goal), nouns)
    assert kind(black, tagged) == 0.5 and kind(casual, tagged) == 0.5  # one of ten nouns each
    assert kind(casual, reward.nouns) == 0.0  # "casual" is none of the word list's
    shop = Shop(small, tagged)
    (task,) = small.tasks
    assert shop.score(task, small.products["B000000001"], ["navy blue", "9"]) == 1.0
    assert envs.make_host("webshop", tagger="en_core_web_sm").score == "score"
    with pytest.raises(ValueError, match="--webshop_tagger is 'en_core_web_xx', but spaCy cannot load it.*download"):
        reward.tagged_by("en_core_web_xx")
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(ValueError, match="spaCy is not installed: pip install spacy"):
        reward.tagged_by("en_core_web_sm")


def test_a_visit(small):
    shop = Shop(small)
    (goal,) = small.tasks
    state = State(goal)
    assert shop.observe(state) == "[Search]"
    results = shop.step(state, "search[rubber boots]")
    assert results.observation.startswith(
        "[Back to Search] Page 1 (Total results: 2) [B000000001] Acme Rubber Boots $19.99 [B000000002] "
    )
    assert " ".join(results.observation.split()) == results.observation
    item = shop.step(results.state, " click[b000000001]")
    assert item.observation == (
        "[Back to Search] [< Prev] color [navy blue][red | white] size [9] Acme Rubber Boots Price: $19.99 "
        "Rating: N.A. [Description] [Features] [Reviews] [Buy Now]"
    )
    chosen = shop.step(item.state, "click[Navy Blue]")
    assert chosen.observation == "You have clicked navy blue."
    features = shop.step(chosen.state, "click[Features]")
    assert features.observation == "[Back to Search] [< Prev] Waterproof easy to clean"
    back = shop.step(features.state, "click[< Prev]")
    assert "color [[navy blue]][red | white]" in back.observation
    bought = shop.step(back.state, "click[Buy Now]")
    assert bought.observation == "Your score (min 0.0, max 1.0): 0.8"
    assert (bought.state.page, bought.reward, bought.valid) == (engine.DONE, pytest.approx(0.8), True)
    # an earlier state is still what it was
    assert shop.step(item.state, "click[Buy Now]").reward == pytest.approx(0.6)
    # going back forgets the options
    assert shop.step(shop.step(back.state, "click[< Prev]").state, "click[B000000001]").observation == item.observation
    assert shop.step(back.state, "click[Back to Search]").state == state


@pytest.mark.parametrize(
    "action",
    ["", "buy", "search", "search[]", "search[ ]", "click[Buy Now]", "click[B000000001]", "go[x]", "click[Next >]"],
)
def test_impossible_actions_change_nothing(small, action):
    shop, state = Shop(small), State(small.tasks[0])
    assert shop.step(state, action) == (state, INVALID, 0.0, False)


def test_pages_of_results_and_a_query_with_nothing_found():
    shop = Shop(catalogue.load(""))
    state = State(catalogue.load("").tasks[0])
    nothing = shop.step(state, "search[zzyzx]")
    assert nothing.observation == "[Back to Search] Page 1 (Total results: 0)"
    assert not shop.step(nothing.state, "search[shoes]").valid  # only on the search page
    page = shop.step(state, "search[shoes color]")
    seen = [page.state.hits[:3]]
    for number in range(2, 6):
        page = shop.step(page.state, "click[Next >]")
        assert page.observation.startswith(f"[Back to Search] Page {number} (Total results: 50) [< Prev]")
        seen.append(page.state.hits[10 * (number - 1) : 10 * (number - 1) + 3])
        assert all(f"[{asin}]" in page.observation for asin in seen[-1])
    assert not shop.step(page.state, "click[Next >]").valid
    assert shop.step(page.state, f"click[{page.state.hits[49]}]").valid  # on the page, though not shown
    assert not shop.step(page.state, f"click[{page.state.hits[0]}]").valid


def test_our_catalogue(tmp_path):
    own = catalogue.load("")
    assert len(own.products) >= 500 and len(own.tasks) >= 200
    assert products.records() == products.records() != products.records(1)
    shop = Shop(own)
    first, perfect = [], 0
    for goal in own.tasks:
        perfect += reward.score(goal, goal.product, goal.options).reward == 1
        results = shop.step(State(goal), f"search[{goal.instruction.split(', and price')[0]}]")
        item = shop.step(results.state, f"click[{results.state.hits[0]}]")
        first.append(shop.step(item.state, "click[Buy Now]").reward)
    assert perfect == len(own.tasks)
    assert 0.3 < np.mean(first) < 0.6
    # what is written is what is read
    products.main([str(tmp_path)])
    written = catalogue.load(str(tmp_path))
    assert set(own.tasks) < set(written.tasks) and written.products == own.products


def test_options_of_our_catalogue_are_told_apart():
    for kind in products.KINDS:
        for values in (*kind.options.values(), kind.attributes):
            for a, b in itertools.combinations(values, 2):
                assert reward.options_met([a], [b]) == 0, (kind.name, a, b)


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("envs.webshop")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    with pytest.raises(ValueError, match=r"webshop needs the package rapidfuzz: pip install 'nlrl_jax\[webshop\]'"):
        envs.make_host("webshop")


def test_the_game_of_the_host(tmp_path):
    game = envs.make_host("webshop")
    assert game.max_steps == 15 and game.score and game.reversible and game.actions == ()
    number = len(catalogue.load("").tasks)
    goals = [start.goal for start in game.reset([("", seed) for seed in range(number)])]
    assert sorted(goals) == sorted(goal.instruction for goal in catalogue.load("").tasks)
    assert game.reset([("", 7)]) == game.reset([("", 7)])
    small = envs.make_host("webshop", max_steps=4, data=write(tmp_path))
    assert small.max_steps == 4
    (start,) = small.reset([("", 5)])
    (found,) = small.step([start.state], ["search[rubber boots]"])
    (item,) = small.step([found.state], ["click[B000000001]"])
    (wrong,) = small.step([item.state], ["pay"])
    assert (wrong.state, wrong.valid, wrong.done) == (item.state, False, False)
    (bought,) = small.step([wrong.state], ["click[Buy Now]"])
    assert (bought.done, bought.success, bought.reward) == (True, False, pytest.approx(0.6))
