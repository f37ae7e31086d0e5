from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from meshnet.cli.models import app

sys.path.insert(0, str(Path(__file__).parent.parent / "weights"))
from weights_testing import CONFIG, LFS_POINTER, everything_under, write_folder, write_json


class Command:
    """``meshnet models`` in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self, *words: str) -> Result:
        return CliRunner().invoke(app, list(words), env={"MESHNET_HOME": str(self.home), "COLUMNS": "120"})


@pytest.fixture
def models(tmp_path: Path) -> Command:
    return Command(tmp_path / "home")


def test_pull_list_show_remove(models: Command, tmp_path: Path) -> None:
    pulled = models("pull", str(write_folder(tmp_path / "Tiny")))
    assert pulled.exit_code == 0, pulled.output
    assert "tiny is stored: 3 layers" in pulled.stdout
    assert "tiny" in models("list").stdout and "smollm2-135m" in models("list").stdout
    shown = models("show", "tiny").stdout
    assert "LlamaForCausalLM" in shown and "folder Tiny" in shown and str(models.home / "models" / "tiny") in shown
    assert "freed" in models("remove", "tiny").stdout
    assert json.loads(models("list", "--json").stdout) == []


def test_json_is_json(models: Command, tmp_path: Path) -> None:
    models("pull", str(write_folder(tmp_path / "in")), "--as", "other")
    (summary,) = json.loads(models("list", "--json").stdout)
    assert (summary["model_key"], summary["n_layers"]) == ("other", 3) and "files" not in summary
    manifest = json.loads(models("show", "other", "--json").stdout)
    assert manifest["revision"] == summary["revision"] and len(manifest["files"]) >= 6


def test_a_second_pull_says_that_it_is_stored(models: Command, tmp_path: Path) -> None:
    folder = str(write_folder(tmp_path / "in"))
    models("pull", folder)
    again = models("pull", folder)
    assert again.exit_code == 0 and "in is already stored" in again.stdout


def test_a_model_without_template_is_said_to_use_a_default(models: Command, tmp_path: Path) -> None:
    pulled = models("pull", str(write_folder(tmp_path / "in", template=None)))
    assert pulled.exit_code == 0 and "no chat template" in pulled.stdout
    assert "a plain default" in models("show", "in").stdout


@pytest.mark.parametrize("words", [("pull", "nonsense"), ("show", "nonsense"), ("remove", "nonsense")])
def test_an_unknown_name_says_what_exists(models: Command, tmp_path: Path, words: tuple[str, str]) -> None:
    models("pull", str(write_folder(tmp_path / "mine")))
    found = models(*words)
    assert found.exit_code == 1
    assert "'nonsense'" in found.stderr and "mine" in found.stderr and "Traceback" not in found.output


def test_bad_input_is_one_line_and_leaves_nothing(models: Command, tmp_path: Path) -> None:
    (tmp_path / "pointer.gguf").write_bytes(LFS_POINTER)
    write_json(write_folder(tmp_path / "mamba") / "config.json", {**CONFIG, "model_type": "mamba"})
    weights = write_folder(tmp_path / "cut") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    for path, word in (("pointer.gguf", "Git LFS pointer"), ("mamba", "not supported"), ("cut", "cut short")):
        found = models("pull", str(tmp_path / path))
        assert found.exit_code == 1 and found.stdout == ""
        assert word in found.stderr and len(found.stderr.strip().splitlines()) == 1
    assert everything_under(models.home) == ["models"]


def test_a_damaged_model_is_pointed_out_in_the_list(models: Command, tmp_path: Path) -> None:
    models("pull", str(write_folder(tmp_path / "in")))
    (models.home / "models/in/manifest.json").write_text("{")
    listed = models("list")
    assert listed.exit_code == 0 and "manifest.json is no manifest" in listed.stderr


def test_the_commands_import_nothing_heavy() -> None:
    script = (
        "import sys; import meshnet.cli.models\n"
        "heavy = {'torch', 'transformers', 'numpy', 'huggingface_hub', 'gguf', 'safetensors'} & set(sys.modules)\n"
        "sys.exit(' '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
