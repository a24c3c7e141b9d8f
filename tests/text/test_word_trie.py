"""Words as a trie, by hand."""

import numpy as np
import pytest

from nlrl_jax.text.word_trie import word_trie


def test_common_beginnings_are_read_once():
    trie = word_trie([[3, 7, 1], [3, 8], [5], [3, 7, 2]])
    np.testing.assert_array_equal(trie.tokens, [3, 7])
    np.testing.assert_array_equal(trie.depth, [1, 2])
    np.testing.assert_array_equal(trie.sees, [[1, 0], [1, 1]])
    np.testing.assert_array_equal(trie.predicted, [3, 7, 1, 8, 5, 2])
    np.testing.assert_array_equal(trie.parent, [0, 1, 2, 1, 0, 2])
    np.testing.assert_array_equal(
        trie.path, [[1, 1, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 1, 0], [1, 1, 0, 0, 0, 1]]
    )
    tokens, mask = trie.words
    np.testing.assert_array_equal(tokens, [[3, 7, 1], [3, 8, 0], [5, 0, 0], [3, 7, 2]])
    np.testing.assert_array_equal(mask.sum(axis=1), [3, 2, 1, 3])


def test_branches_do_not_see_each_other():
    trie = word_trie([[1, 1, 1], [2, 1, 1]])
    np.testing.assert_array_equal(trie.tokens, [1, 1, 2, 1])
    np.testing.assert_array_equal(trie.sees, [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]])


def test_words_of_one_token_are_only_predicted():
    trie = word_trie([[4], [2]])
    assert trie.tokens.shape == (0,) and trie.sees.shape == (0, 0)
    np.testing.assert_array_equal(trie.predicted, [4, 2])


@pytest.mark.parametrize("words", [[[1, 2], [1]], [[1], [1, 2]], [[1, 2], [1, 2]], [[1], []]])
def test_ambiguous_words_are_refused(words):
    with pytest.raises(ValueError, match="beginning of another word|no tokens"):
        word_trie(words)
