"""Tracker, relay, console and chat run without torch: the light half imports with the heavy one blocked."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ["torch", "transformers", "optimum", "gguf", "safetensors", "huggingface_hub", "tokenizers", "numpy"]
BLOCK = f"""
import sys
class Without:
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        heavy = name.split('.')[0] in {HEAVY!r}
        return None if heavy else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


@pytest.mark.parametrize(
    "module",
    ["meshnet.cli.__main__", "meshnet.client.tracker", "meshnet.weights.store", "daemons.tracker.app", "tui.app"],
)
def test_light_half_imports_without_the_node_extra(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"{BLOCK}\nimport {module}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_up_node_without_the_extra_names_the_install_command() -> None:
    script = f"{BLOCK}\nimport runpy\nsys.argv = ['node', '--model', 'x', '--shard', '0-1']\n" + (
        "runpy.run_module('daemons.node', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'meshnet-llm[node]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_and_status_import_neither_textual_nor_torch() -> None:
    script = "import sys\nimport meshnet.cli.__main__\nbad = [m for m in ('textual', 'torch') if m in sys.modules]\n"
    done = subprocess.run(
        [sys.executable, "-c", script + "sys.exit(' '.join(bad) or 0)"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
