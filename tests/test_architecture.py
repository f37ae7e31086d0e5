"""The floors hold: imports only go down (docs/design.md section 3), and what is banned is not there.

Lazy, relative and TYPE_CHECKING imports count too: the whole syntax tree is read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# room -> rooms it may import from, beside itself.
DOMAIN = "meshnet.domain"
WIRE = "meshnet.wire"
WEIGHTS = "meshnet.weights"
MAY_IMPORT: dict[str, set[str]] = {
    "meshnet.domain": set(),
    "meshnet.wire": {DOMAIN},
    "meshnet.weights": {DOMAIN, WIRE},
    "meshnet.client": {DOMAIN, WIRE},
    "daemons.kit": {DOMAIN, WIRE, WEIGHTS},
    "meshnet.engine": {DOMAIN, WIRE, WEIGHTS},
    "daemons.tracker": {DOMAIN, WIRE, WEIGHTS, "meshnet.client", "daemons.kit"},
    "daemons.node": {DOMAIN, WIRE, WEIGHTS, "meshnet.client", "daemons.kit"},
    "daemons.relay": {DOMAIN, WIRE, WEIGHTS, "meshnet.client", "daemons.kit"},
    "meshnet.cli": {DOMAIN, WIRE, WEIGHTS, "meshnet.client"},
    "tui": {DOMAIN, WIRE, "meshnet.client"},
}
ENTRY = {"daemons/node/__main__.py": {"meshnet.engine"}}

# package -> rooms or files that may import it.
ONLY_IN = {
    "torch": ("meshnet/engine/", "meshnet/bench/"),
    "transformers": ("meshnet/engine/", "meshnet/bench/"),
    "optimum": ("meshnet/engine/", "meshnet/bench/"),
    "httpx": ("meshnet/client/", "meshnet/bench/"),
    "aiohttp": ("daemons/", "meshnet/bench/"),
    "sqlite3": ("daemons/tracker/store.py",),
    "psutil": ("daemons/kit/host.py", "meshnet/cli/", "meshnet/bench/"),
    "textual": ("tui/", "meshnet/bench/"),
}
DOMAIN_BANS = {
    "time",
    "os",
    "asyncio",
    "socket",
    "pathlib",
    "subprocess",
    "threading",
    "datetime",
    "logging",
    "msgspec",
}
BANNED_EVERYWHERE = {"pickle", "shelve", "marshal", "dill", "cloudpickle"}


def source_files() -> list[Path]:
    return sorted(p for top in ("meshnet", "daemons", "tui") for p in (ROOT / top).rglob("*.py"))


def room_of(module: str) -> str | None:
    if module == "tui" or module.startswith("tui."):
        return "tui"
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] in ("meshnet", "daemons") and len(parts) > 1 else None


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    package = module_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            yield from ((node.lineno, str(arg.value)) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def test_imports_only_go_down() -> None:
    wrong = []
    for path in source_files():
        name = path.relative_to(ROOT).as_posix()
        own = room_of(module_of(path))
        if own is None or own == "meshnet.bench":
            continue
        allowed = MAY_IMPORT[own] | {own} | ENTRY.get(name, set())
        for line, module in imports(path):
            room = room_of(module)
            if (room in MAY_IMPORT and room not in allowed) or room == "meshnet.bench":
                wrong.append(f"{name}:{line} {own} imports {module}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", sorted(ONLY_IN))
def test_package_stays_in_its_room(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in source_files()
        for line, module in imports(path)
        if module.split(".")[0] == package and not path.relative_to(ROOT).as_posix().startswith(ONLY_IN[package])
    ]
    assert not wrong, "\n".join(wrong)


def test_domain_has_no_io_clock_or_dice() -> None:
    wrong = []
    for path in (ROOT / "meshnet/domain").rglob("*.py"):
        for line, module in imports(path):
            top = module.split(".")[0]
            if top in DOMAIN_BANS or (top == "random" and module != "random.Random"):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_nothing_is_ever_unpickled() -> None:
    wrong = []
    for path in source_files():
        for line, module in imports(path):
            if module.split(".")[0] in BANNED_EVERYWHERE:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load":
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} torch.load")
    assert not wrong, "\n".join(wrong)


def test_tasks_are_made_in_one_place() -> None:
    wrong = []
    for path in source_files():
        if path.relative_to(ROOT).as_posix() == "daemons/kit/tasks.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                text = ast.unparse(node.func)
                if node.func.attr in ("create_task", "ensure_future") and not text.startswith(("group.", "tasks.")):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {text}")
    assert not wrong, "\n".join(wrong)


def test_broad_excepts_stand_only_where_failures_are_reported() -> None:
    allowed = {"daemons/kit/tasks.py", "daemons/kit/web.py"}
    wrong = []
    for path in source_files():
        if path.relative_to(ROOT).as_posix() in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ExceptHandler) and (node.type is None or ast.unparse(node.type) == "Exception"):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not wrong, "\n".join(wrong)


def test_no_file_is_an_attic() -> None:
    names = {"utils", "util", "helpers", "common", "base", "manager", "misc"}
    assert not [p for p in source_files() if p.stem in names]


def test_test_files_have_names_of_their_own() -> None:
    """Folders of tests without an __init__ share one space of module names: of two alike, one is not collected."""
    loose = [p for p in (ROOT / "tests").rglob("*.py") if not (p.parent / "__init__.py").exists()]
    names = [p.name for p in loose if p.name != "conftest.py"]
    assert sorted({name for name in names if names.count(name) > 1}) == []
