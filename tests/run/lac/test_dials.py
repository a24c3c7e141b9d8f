import json

import pytest

from nlrl_jax.algorithms.lac import LACConfig
from nlrl_jax.config import flat, replace
from nlrl_jax.launch.iterate_lac import IterateConfig
from nlrl_jax.launch.run_lac import LACRunConfig
from nlrl_jax.run.lac.dials import Dials, lac_of, settled


@pytest.mark.parametrize("config", [LACRunConfig(), IterateConfig()])
def test_a_models_own_values_stand_where_none_are_given(config, tmp_path):
    dials = lambda **given: [flat(settled(replace(config, **given)))[name] for name in ("alpha", "floor")]
    assert dials(model="nano_babyai") == [0.5, 0.02]
    assert dials(model="smollm2") == dials(model="some/folder") == [1, 0]
    assert dials(model="nano_babyai", floor=0) == [0.5, 0]
    assert dials(model="smollm2", alpha=2) == dials(model="nano_babyai", prompt="paper", alpha=2) == [2, 0]
    (tmp_path / "dialogue.json").write_text(json.dumps({"prompt": "compact"}))  # as of `pretrain_nano --games babyai`
    assert dials(model=str(tmp_path)) == [0.5, 0.02]


def test_settled_configs_stay_as_they_are():
    config = settled(LACRunConfig(model="nano_babyai", lac=LACConfig(words="YES,NO")))
    assert settled(config) == config
    assert lac_of(config) == LACConfig(alpha=0.5, floor=0.02, words="YES,NO")


@pytest.mark.parametrize("given", [{"alpha": 0}, {"alpha": -0.5}, {"floor": -0.5}, {"floor": 2}])
def test_refuses(given):
    with pytest.raises(ValueError, match=f"{next(iter(given))} is"):
        Dials(**given)
