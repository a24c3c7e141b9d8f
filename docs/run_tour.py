"""Runs docs/tour.ipynb from top to bottom and keeps what its cells print: `python docs/run_tour.py`. No Jupyter."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib

TOUR = pathlib.Path(__file__).with_name("tour.ipynb")


def printed(notebook: dict) -> list[str]:
    """What each code cell prints, in one process, as Jupyter would run them."""
    names, texts = {"__name__": "__main__"}, []
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
            texts.append(out.getvalue())
    return texts


def main() -> None:
    notebook = json.loads(TOUR.read_text())
    texts = iter(printed(notebook))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            text = next(texts)
            output = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
            cell["outputs"] = [output] if text else []
    TOUR.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
