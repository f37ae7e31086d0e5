from __future__ import annotations

from pathlib import Path

import gguf
import pytest
from gguf_testing import make_model, write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from weights_testing import LFS_POINTER

from meshnet.domain.errors import WeightsError
from meshnet.weights import gguf_header
from meshnet.weights.families import find_gguf_family
from meshnet.weights.gguf_header import read_gguf_header


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", make_model("llama"), "Q8_0").read_bytes()


def test_a_header_is_read_as_gguf_reads_it(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(whole)
    header = read_gguf_header(tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert header.architecture == "llama"
    assert header.values["llama.block_count"] == 3
    assert header.lengths["tokenizer.ggml.tokens"] == len(reader.fields["tokenizer.ggml.tokens"].data)
    assert header.n_tensors == len(reader.tensors)
    assert header.n_elements == sum(int(t.n_elements) for t in reader.tensors)
    assert header.float32_bytes == 4 * header.n_elements
    assert header.type_names[0] == "Q8_0"


def test_the_type_table_is_that_of_gguf() -> None:
    for number, (name, elements, size) in gguf_header._TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert kind.name == name
        assert gguf.GGML_QUANT_SIZES[kind] == (elements, size)


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_refused_with_its_name(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    file = tmp_path_factory.mktemp("cut") / "m.gguf"
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(WeightsError, match=r"m\.gguf"):
        read_gguf_header(file)


@pytest.mark.parametrize("n_bytes", [0, 3, 4, 8, 23, 100])
def test_a_file_cut_in_its_header_says_so(tmp_path: Path, whole: bytes, n_bytes: int) -> None:
    (tmp_path / "m.gguf").write_bytes(whole[:n_bytes])
    with pytest.raises(WeightsError, match=f"{n_bytes} bytes found"):
        read_gguf_header(tmp_path / "m.gguf")


def test_a_file_cut_in_its_data_says_both_sizes(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(whole[:-100])
    with pytest.raises(WeightsError, match=rf"cut short: expected \d+ bytes, found {len(whole) - 100}"):
        read_gguf_header(tmp_path / "m.gguf")


def patched(whole: bytes, at: int, new: bytes) -> bytes:
    return whole[:at] + new + whole[at + len(new) :]


@pytest.mark.parametrize(
    ("at", "new", "word"),
    [
        (0, b"GGML", "no GGUF file"),
        (4, (99).to_bytes(4, "little"), "version 99; versions 2 and 3"),
        (4, (1).to_bytes(4, "little"), "version 1;"),
        (8, (1 << 60).to_bytes(8, "little"), "damaged"),
        (16, (1 << 60).to_bytes(8, "little"), "damaged"),
    ],
)
def test_a_damaged_start_is_named(tmp_path: Path, whole: bytes, at: int, new: bytes, word: str) -> None:
    (tmp_path / "m.gguf").write_bytes(patched(whole, at, new))
    with pytest.raises(WeightsError, match=word):
        read_gguf_header(tmp_path / "m.gguf")


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, 1200), byte=st.integers(0, 255))
def test_any_byte_of_the_header_may_be_wrong_and_only_weights_errors_come(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, at: int, byte: int
) -> None:
    file = tmp_path_factory.mktemp("flip") / "m.gguf"
    file.write_bytes(patched(whole, at, bytes([byte])))
    try:
        read_gguf_header(file)
    except WeightsError as error:
        assert "m.gguf" in error.message


def test_a_git_lfs_pointer_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(LFS_POINTER)
    with pytest.raises(WeightsError, match="Git LFS pointer"):
        read_gguf_header(tmp_path / "m.gguf")


def test_an_unsupported_architecture_names_the_supported_ones() -> None:
    with pytest.raises(WeightsError, match=r"'bert'.*llama, qwen2, qwen3"):
        find_gguf_family("bert")
