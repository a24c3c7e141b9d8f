"""The import arrows of the house point one way."""

import ast
import functools
import graphlib
import pathlib
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).parent.parent
OURS = ("nlrl_jax", "envs", "launch", "benchmarks", "tests")

# The floors of the house from the ground up: a place imports from floors below its own, and from its own floor only
# within itself; the leaves at the bottom and the two folders at the top may also see each other.
FLOORS = (
    ("nlrl_jax.arrays", "nlrl_jax.config", "nlrl_jax.files", "nlrl_jax.types", "nlrl_jax.losses", "nlrl_jax.returns",
     "nlrl_jax.multihost", "nlrl_jax.networks", "nlrl_jax.old_names", "nlrl_jax.statistics", "nlrl_jax.updates",
     "nlrl_jax.gymnax_base", "nlrl_jax.module_finder",
     "nlrl_jax.text.template"),  # a template is data, as are `types`
    ("nlrl_jax.lm", "nlrl_jax.roles"),
    ("nlrl_jax.text", "nlrl_jax.weights"),
    ("nlrl_jax.rollouts", "nlrl_jax.backends"),
    ("nlrl_jax.algorithms",),
    ("nlrl_jax.run",),
    ("nlrl_jax.launch",),
    ("benchmarks", "tests"),
)  # fmt: skip
ENVS_MAY_IMPORT = (
    "nlrl_jax.config",
    "nlrl_jax.gymnax_base",
    "nlrl_jax.types",
    "nlrl_jax.updates",
    "nlrl_jax.text",
    "nlrl_jax.roles",
    "nlrl_jax.envs",
    "nlrl_jax.old_names",
)
MAY_IMPORT_ENVS = ("nlrl_jax.launch", "benchmarks", "tests")


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


def place_of(name: str) -> tuple[int, str]:
    """(floor, place) of a module; envs stand beside the house."""
    return max(
        ((n, place) for n, floor in enumerate(FLOORS) for place in floor if within(name, place)),
        key=lambda found: len(found[1]),
    )


@functools.cache
def modules() -> dict[str, pathlib.Path]:
    """Every module of ours by its dotted name."""
    found = {}
    for top in OURS:
        for path in files(top):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            name = f"nlrl_jax.{name}" if top in ("envs", "launch") else name
            found[name.removesuffix(".__init__")] = path
    return found


@functools.cache
def arrows() -> dict[str, set[str]]:
    """module -> the modules of ours that it imports, wherever in the file, for types or at run time."""
    known = modules()
    whole = lambda name: name if name in known else name.rpartition(".")[0]
    return {name: {whole(other) for other in imports_of(path)} & set(known) - {name} for name, path in known.items()}


def test_no_arrow_points_up():
    wrong = []
    for name, others in arrows().items():
        if within(name, "nlrl_jax.envs") or name == "nlrl_jax":
            continue
        floor, place = place_of(name)
        for other in others - {"nlrl_jax"}:
            if within(other, "nlrl_jax.envs"):
                if not any(within(name, room) for room in MAY_IMPORT_ENVS):
                    wrong.append(f"{name} imports {other}")
            elif not (place_of(other)[0] < floor or place_of(other)[1] == place or floor in (0, len(FLOORS) - 1)):
                wrong.append(f"{name} imports {other}")
    assert not wrong, "\n".join(wrong)


def test_games_import_only_leaves_text_and_roles():
    wrong = [
        f"{name} imports {other}"
        for name, others in arrows().items()
        if within(name, "nlrl_jax.envs")
        for other in others - {"nlrl_jax"}
        if not any(within(other, room) for room in ENVS_MAY_IMPORT)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_circle():
    """No module reaches itself: `graphlib` names the circle if one does."""
    graph = {name: {other for other in others if not name.startswith(other + ".")} for name, others in arrows().items()}
    list(graphlib.TopologicalSorter(graph).static_order())


def test_every_script_can_be_launched():
    for name, path in modules().items():
        if within(name, "nlrl_jax.launch") and name != "nlrl_jax.launch":
            assert '\nif __name__ == "__main__":\n' in path.read_text(), f"{name} is no script"


def test_the_wheel_has_every_package():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    inits = [path for top in ("nlrl_jax", "envs", "launch") for path in (ROOT / top).rglob("__init__.py")]
    names = [".".join(path.parent.relative_to(ROOT).parts) for path in inits]
    assert sorted(declared) == sorted(x if within(x, "nlrl_jax") else f"nlrl_jax.{x}" for x in names)


def test_old_names_are_the_same_modules():
    code = (
        "import envs.snake, launch.generate, nlrl_jax.envs.snake, nlrl_jax.launch.generate\n"
        "assert envs.snake is nlrl_jax.envs.snake and launch.generate is nlrl_jax.launch.generate\n"
        "assert envs is nlrl_jax.envs and envs.snake.__spec__.name == 'nlrl_jax.envs.snake'"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    command = [sys.executable, "-m", "launch.compare", "runs/nowhere"]
    assert "runs/nowhere holds no run" in subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stderr


def test_imports_are_seen():
    """Guards the tests above against reading nothing."""
    assert all(any(within(name, place) for name in modules()) for floor in FLOORS for place in floor)
    assert "nlrl_jax.types" in arrows()["nlrl_jax.rollouts.text_games"]
    assert "nlrl_jax.text.template" in arrows()["nlrl_jax.text.compile"]


def test_scripts_of_several_processes_look_for_devices_after_they_have_joined():
    joined = [
        name
        for name, path in modules().items()
        if within(name, "nlrl_jax.launch") and "several=True" in path.read_text()
    ]
    assert len(joined) == 6
    code = "from jax._src import xla_bridge\n" + "".join(
        f"import {name}\nif xla_bridge._backends: print({name!r})\n" for name in joined
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert not out.strip()


def test_import_is_light():
    heavy = ("torch", "transformers", "gymnax")
    code = f"import sys, nlrl_jax, nlrl_jax.lm.tokenizer; print(any(m in sys.modules for m in {heavy}))"
    start = time.perf_counter()
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    seconds = time.perf_counter() - start
    assert out.strip() == "False"
    assert seconds < 10  # far above the 2 s it takes when quiet: this catches a torch, not a busy machine
