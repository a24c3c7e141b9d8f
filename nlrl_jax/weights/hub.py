"""Models of the Hugging Face Hub, in the cache that `huggingface_hub` keeps (extra `hub`).

The variables HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE work as they do everywhere.
"""

from __future__ import annotations

import functools
import os
import pathlib
import re

_TEXT_SIDE = ("*.json", "*.jinja", "*.txt", "*.model")  # configuration and tokenizer: a few megabytes
_WEIGHTS = ("model.safetensors", "model-*.safetensors")


def is_id(name: str) -> bool:
    """Whether a name has the form ORG/NAME of the Hub's models."""
    return bool(re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name, re.ASCII)) and not name.endswith(".gguf")


@functools.lru_cache(maxsize=64)
def snapshot(name: str, revision: str = "", weights: bool = True) -> pathlib.Path:
    """The folder of a model in the cache; what it lacks is downloaded, and without network it is used as it is.

    Args:
      name: ORG/NAME.
      revision: branch, tag or commit; "" is the main branch.
      weights: False leaves out the weights.

    Raises:
      ValueError: the package `huggingface_hub` is not installed.
      FileNotFoundError: the Hub has no such model or revision, or does not show it without a login.
      OSError: it is not in the cache and cannot be downloaded.
    """
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError:
        raise ValueError(
            f"there is no folder {name!r} here; to take it from the Hugging Face Hub, run pip install 'nlrl_jax[hub]'"
        ) from None
    patterns = [*_TEXT_SIDE, *(_WEIGHTS if weights else ())]
    try:
        return pathlib.Path(
            huggingface_hub.snapshot_download(
                name, revision=revision or None, allow_patterns=patterns, ignore_patterns="*/*"
            )
        )
    except errors.RevisionNotFoundError:
        raise FileNotFoundError(f"the Hub's {name} has no revision {revision!r}") from None
    except errors.GatedRepoError:
        raise FileNotFoundError(
            f"{name} is gated: accept its conditions on its page of the Hub, then run `hf auth login`"
        ) from None
    except errors.RepositoryNotFoundError:
        raise FileNotFoundError(
            f"there is no folder {name!r} here and no such model on the Hub (if it is private, run `hf auth login`)"
        ) from None
    except errors.LocalEntryNotFoundError:
        offline = "HF_HUB_OFFLINE is set" if huggingface_hub.constants.HF_HUB_OFFLINE else "the Hub cannot be reached"
        version = f"{name} at revision {revision!r}" if revision else name
        raise FileNotFoundError(
            f"there is no folder {name!r} here, {offline}, and {version} is not (wholly) in the cache "
            f"{huggingface_hub.constants.HF_HUB_CACHE}"
        ) from None
    except Exception as error:  # a proxy, a broken connection, a full disk: each has an exception of its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        names = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
        proxies = sorted(f"${variable}" for variable in os.environ if variable.lower() in names)
        by = f" (with {' and '.join(proxies)})" if proxies else ""
        raise OSError(f"{name} cannot be downloaded from the Hub{by}: {reason}") from error
