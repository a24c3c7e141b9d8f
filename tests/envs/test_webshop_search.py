"""WebShop's search beside Anserini 0.14.3, the Java inside pyserini 0.17.0: terms of texts and rankings of queries.

`goldens/lucene.json` holds its answers to texts (with their terms) and to queries (the first five products of every
tenth, and a digest of all). With Java itself, on thousands of texts more:

    PYSERINI_JAR=.../pyserini/resources/jars/anserini-0.14.3-fatjar.jar python -m pytest -m lucene
"""

import hashlib
import json
import os
import pathlib
import random
import shutil
import subprocess

import numpy as np
import pytest

from nlrl_jax.envs.webshop import analyzer, catalogue, search

GOLDENS = json.loads((pathlib.Path(__file__).parents[1] / "goldens" / "lucene.json").read_text("utf-8"))
JAR = os.environ.get("PYSERINI_JAR", "")


def shop():
    """Products of our catalogue and odd ones, and 500 queries."""
    found, rng = catalogue.load(""), random.Random(0)
    texts = {asin: search.document(product) for asin, product in list(found.products.items())[::2]}
    odd = ["", "the of and", "!!!", "😀 😀 men's red", "material:cotton 6'x8' 16:9 red", "red " * 300, "中文 红色 red"]
    texts |= {f"Z{i}": text for i, text in enumerate(odd)}
    words = [word for text in texts.values() for word in text.split()]
    drawn = [" ".join(rng.choices(words, k=rng.randint(1, 7))) for _ in range(390)]
    asked = [goal.instruction for goal in found.tasks[:100]]
    return texts, [
        *asked,
        *drawn,
        "red red shoes",
        "red shoes",
        "red",
        "material:cotton",
        "cotton",
        "the",
        "😀",
        "红",
        "us",
        "",
    ]


def digest(rankings) -> str:
    return hashlib.sha256(json.dumps(rankings).encode()).hexdigest()


@pytest.mark.parametrize("text", GOLDENS["terms"])
def test_terms_are_lucenes(text):
    assert analyzer.terms(text) == GOLDENS["terms"][text]


def test_rankings_are_lucenes():
    texts, queries = shop()
    index, ids = search.Index(list(texts.values()), list(texts)), list(texts)
    rankings = [[ids[i] for i in index.search(query)] for query in queries]
    for query, ranking, expected in zip(queries[::10], rankings[::10], GOLDENS["first"]):
        assert ranking[:5] == expected, query
    assert len(queries) == 500 and digest(rankings) == GOLDENS["rankings"]


def test_lengths_are_rounded_to_a_byte():
    # Below 40 exact, then 24 and a number with four significant bits.
    known = {0: 0, 39: 39, 40: 40, 41: 40, 42: 42, 57: 56, 100: 96, 104: 104, 1000: 984}
    assert {length: search.rounded_length(length) for length in known} == known


def made_texts(rng, number):
    """Characters of all classes, and words of common endings."""
    classes = analyzer._classes()
    runs = {letter: [] for letter in classes.letters}
    for first, last, letter in zip(classes.starts, classes.ends, classes.letters):
        runs[letter].append((first, last))
    runs[" "] = [(0x20, 0x26), (0x2028, 0x202E), (0x3000, 0x3002)]
    kinds = [list(runs), *map(list, ("AN0_.,:'\" ", "WA'\"._", "BPIMjvtxgGk0#R", "KHhSsx_Aj"))]
    character = lambda kind: chr(rng.randint(*rng.choice(runs[kind])))
    odd = [
        "".join(character(rng.choice(some)) for _ in range(rng.choice((3, 8, 15, 400))))
        for some in kinds
        for _ in range(number)
    ]
    ends = "s es ed ing eed ies y e ll li bli logi ation ator ism iveness ness ful icate ical al er able ement ion sion"
    part = lambda: "".join(
        rng.choice("aeiouy" if rng.random() < 0.4 else "bcdlmnrstwxz") for _ in range(rng.randrange(6))
    )
    word = lambda: part() + "".join(rng.choices(ends.split(), k=rng.randrange(4)))
    return odd + [" ".join(word() for _ in range(20)) for _ in range(number)]


@pytest.mark.lucene
@pytest.mark.skipif(not JAR or not shutil.which("javac"), reason="needs a JDK and pyserini's jar (PYSERINI_JAR)")
def test_lucene_itself(tmp_path):
    made, (texts, queries) = [*GOLDENS["terms"], *made_texts(random.Random(0), 1000)], shop()
    documents = [{"id": name, "contents": text} for name, text in texts.items()]
    ask, answers = tmp_path / "questions.json", tmp_path / "answers.json"
    ask.write_text(json.dumps({"texts": made, "documents": documents, "queries": queries}))
    program = pathlib.Path(__file__).with_name("Lucene.java")
    subprocess.run(["java", "-cp", JAR, program, ask, answers, tmp_path], check=True, capture_output=True)
    found = json.loads(answers.read_text())
    for text, expected in zip(made, found["terms"]):
        assert analyzer.terms(text) == expected, text
    index, rankings = search.Index(list(texts.values()), list(texts)), []
    for query, hits in zip(queries, found["hits"]):
        best = index.search(query)
        rankings.append([name for name, _ in hits])
        assert [list(texts)[i] for i in best] == rankings[-1], query
        np.testing.assert_allclose(index.scores(query)[best], [score for _, score in hits], atol=2e-4)  # it unties
    assert found["terms"][: len(GOLDENS["terms"])] == list(GOLDENS["terms"].values())
    assert digest(rankings) == GOLDENS["rankings"]
