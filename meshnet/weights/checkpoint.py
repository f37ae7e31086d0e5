"""The tensors of a Hugging Face folder: one safetensors file, or many with an index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from meshnet.domain.errors import WeightsError
from meshnet.weights.shape import read_json
from meshnet.weights.tensors import Tensor, read_tensors

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def checkpoint_files(folder: Path) -> list[Path]:
    """The safetensors files of the folder's model. Raises WeightsError: none (or only pickled ones, which are never
    read), several without an index, or an index that names a missing file."""
    if (folder / INDEX).is_file():
        return _indexed_files(folder)
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return files
    if files:
        raise WeightsError(
            f"{folder} holds {len(files)} safetensors files but no {INDEX} to say which belong together."
        )
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")):
        raise WeightsError(
            f"{folder} holds pickled weights (*.bin, *.pt), which can run code when read. "
            "Save the model as safetensors, then pull it."
        )
    raise WeightsError(f"{folder} holds no weights: no {SINGLE} and no {INDEX}.")


def read_checkpoint(folder: Path) -> Iterator[Tensor]:
    """Every tensor, file by file. Raises WeightsError for damage, a name given twice, or an index that does not fit."""
    seen: dict[str, Path] = {}
    for file in checkpoint_files(folder):
        for tensor in read_tensors(file):
            if tensor.name in seen:
                raise WeightsError(f"Tensor {tensor.name} is both in {seen[tensor.name].name} and in {file.name}.")
            seen[tensor.name] = file
            yield tensor
    if (folder / INDEX).is_file():
        absent = sorted(set(_weight_map(folder)) - set(seen))
        if absent:
            raise WeightsError(
                f"{folder / INDEX} lists tensor {absent[0]}, which no file holds ({len(absent)} missing)."
            )


def _indexed_files(folder: Path) -> list[Path]:
    names = sorted(set(_weight_map(folder).values()))
    for name in names:
        if "/" in name or "\\" in name or not name.endswith(".safetensors"):
            raise WeightsError(f"{folder / INDEX} names {name!r}, which is no safetensors file of this folder.")
        if not (folder / name).is_file():
            raise WeightsError(f"{folder / INDEX} names {name}, which is missing in {folder}.")
    return [folder / name for name in names]


def _weight_map(folder: Path) -> dict[str, str]:
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()) or not weight_map:
        raise WeightsError(f"{folder / INDEX} has no weight_map from tensor names to files.")
    return weight_map
