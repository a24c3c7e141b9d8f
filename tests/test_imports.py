"""The import arrows of the house point one way."""

import ast
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parent.parent
OURS = ("nlrl_jax", "envs", "launch", "benchmarks", "tests")

# folder or file -> what it must not import
FORBIDDEN = {
    "nlrl_jax": ("envs", "launch", "benchmarks", "tests"),
    "envs": ("launch", "benchmarks", "tests"),
    "launch": ("benchmarks", "tests"),
    "nlrl_jax/losses.py": ("nlrl_jax.lm", "nlrl_jax.text", "nlrl_jax.algorithms", "nlrl_jax.rollout"),
    "nlrl_jax/returns.py": ("nlrl_jax.lm", "nlrl_jax.text", "nlrl_jax.algorithms", "nlrl_jax.rollout"),
    "nlrl_jax/lm": ("nlrl_jax.text", "nlrl_jax.algorithms", "nlrl_jax.rollout", "nlrl_jax.run", "nlrl_jax.weights"),
    "nlrl_jax/weights": ("nlrl_jax.text", "nlrl_jax.algorithms", "nlrl_jax.rollout", "nlrl_jax.run"),
    "nlrl_jax/text": ("nlrl_jax.algorithms", "nlrl_jax.rollout", "nlrl_jax.run", "nlrl_jax.weights"),
    "nlrl_jax/rollout.py": ("nlrl_jax.algorithms", "nlrl_jax.run", "nlrl_jax.weights"),
    "nlrl_jax/algorithms": ("nlrl_jax.run", "nlrl_jax.weights"),
}
ENVS_MAY_IMPORT = ("nlrl_jax.types", "nlrl_jax.text")


def imports_of(path: pathlib.Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] in OURS}


def within(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


def files(place: str) -> list[pathlib.Path]:
    path = ROOT / place
    return [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))


def test_no_arrow_points_back():
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for place, rooms in FORBIDDEN.items()
        for file in files(place)
        for name in imports_of(file)
        if any(within(name, room) for room in rooms)
    ]
    assert not wrong, "\n".join(wrong)


def test_games_see_only_types_and_text():
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files("envs")
        for name in imports_of(file)
        if within(name, "nlrl_jax") and name != "nlrl_jax" and not any(within(name, room) for room in ENVS_MAY_IMPORT)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_place_exists_and_imports_are_seen():
    """Guards the two tests above against reading nothing."""
    assert all(files(place) for place in FORBIDDEN)
    assert "nlrl_jax.types" in imports_of(ROOT / "nlrl_jax/rollout.py")


def test_import_is_light():
    code = "import sys, nlrl_jax; print(any(m in sys.modules for m in ('torch', 'transformers', 'gymnax')))"
    start = time.perf_counter()
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    seconds = time.perf_counter() - start
    assert out.strip() == "False"
    assert seconds < 10  # far above the 2 s it takes when quiet: this catches a torch, not a busy machine
