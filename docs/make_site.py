"""The pages as a site with search, without a network: `make site`, then `python -m http.server -d build/site`.

    python docs/make_site.py       # needs the extra `docs` (mkdocs-material)

README becomes the first page, docs/tour.ipynb a page with its code, and each file of the repository that a page links a
page of the site, so that links and search reach the code too.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
SOURCE = BUILD / "site_pages"  # what mkdocs reads
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def pages() -> list[pathlib.Path]:
    """README, the pages in docs/, and the notebook."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "docs").glob("*.ipynb"))]


def place(path: pathlib.Path) -> pathlib.Path:
    """Where a file of the repository goes in the site, as Markdown or as it is."""
    name = path.relative_to(ROOT)
    if name == pathlib.Path("README.md"):
        return pathlib.Path("index.md")
    if name.parts[0] == "docs" and path.is_file() and path.suffix != ".py":
        return name.relative_to("docs").with_suffix(".md" if path.suffix == ".ipynb" else path.suffix)
    return pathlib.Path("code") / (name / "index.md" if path.is_dir() else f"{name}.md")


def relinked(text: str, path: pathlib.Path, targets: set[pathlib.Path]) -> str:
    """A page whose links lead to the site's places; the files that it links are added to `targets`."""

    def relink(match: re.Match) -> str:
        opening, file, section, closing = match.groups()
        target = (path.parent / file).resolve()
        if "://" in file or not target.is_relative_to(ROOT) or not target.exists():
            return match[0]
        targets.add(target)
        return f"{opening}{os.path.relpath(place(target), place(path).parent)}{section or ''}{closing}"

    parts, end = [], 0
    for fence in FENCE.finditer(text):  # code stays as it is
        parts += [LINK.sub(relink, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join(parts) + LINK.sub(relink, text[end:])


def of_notebook(path: pathlib.Path) -> str:
    """A notebook as Markdown, its short outputs below their code."""
    blocks = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        blocks.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            blocks.append(f"```text\n{''.join(output.get('text', ())).rstrip()}\n```")
    return "\n\n".join(blocks) + "\n"


def of_code(path: pathlib.Path) -> str:
    """A page with a file, or with links to the files of a folder."""
    name = path.relative_to(ROOT)
    if path.is_dir():
        files = sorted(file.name for file in path.glob("*.py"))
        return f"# {name}\n\n" + "\n".join(f"- [{file}]({file})" for file in files) + "\n"
    language = {".py": "python", ".sh": "bash", ".toml": "toml", ".cff": "yaml"}.get(path.suffix, "text")
    ranked_low = "---\nsearch:\n  boost: 0.2\n---\n\n"  # pages come before code in what search finds
    return f"{ranked_low}# {name}\n\n````{language}\n{path.read_text()}\n````\n"


def write(path: pathlib.Path, text: str) -> None:
    out = SOURCE / place(path)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)


def assemble() -> None:
    """Fills SOURCE: the pages, what they link, and what that links."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    targets: set[pathlib.Path] = set()
    for path in pages():
        write(path, relinked(of_notebook(path) if path.suffix == ".ipynb" else path.read_text(), path, targets))
    done = set(pages())
    while rest := targets - done:
        done |= rest
        for path in rest:
            if path.is_dir():
                write(path, relinked(of_code(path), path / "index.md", targets))
            elif place(path).suffix == ".md":
                write(path, of_code(path))
            else:  # a picture
                (SOURCE / place(path)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, SOURCE / place(path))


if __name__ == "__main__":
    assemble()
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", "docs/mkdocs.yml"]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    print(f"{BUILD / 'site'}: read it by `python -m http.server -d build/site`")
