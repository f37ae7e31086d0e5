from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from weights_testing import LFS_POINTER

from meshnet.domain.errors import WeightsError
from meshnet.weights.tensors import NewTensor, Tensor, read_tensors, write_tensors


def sample() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).to(torch.bfloat16),
        "c": torch.randn(4, 4).to(torch.float8_e4m3fn),
        "d": torch.arange(9, dtype=torch.uint8),
        "e": torch.randn(2, 2, dtype=torch.float64),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(2.5),
    }


def copied(tensor: Tensor) -> NewTensor:
    return NewTensor(tensor.name, tensor.dtype, tensor.shape, tensor.read)


def test_a_rewritten_file_is_equal_bit_for_bit_in_every_dtype(tmp_path: Path) -> None:
    save_file(sample(), tmp_path / "in")
    write_tensors(tmp_path / "out", [copied(t) for t in read_tensors(tmp_path / "in")])
    out = load_file(tmp_path / "out")
    assert set(out) == set(sample())
    for name, tensor in sample().items():
        assert out[name].dtype == tensor.dtype and out[name].shape == tensor.shape
        assert out[name].flatten().view(torch.uint8).equal(tensor.flatten().view(torch.uint8))


def test_the_same_tensors_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    save_file(sample(), tmp_path / "in")
    tensors = [copied(t) for t in read_tensors(tmp_path / "in")]
    first = write_tensors(tmp_path / "one", tensors)
    second = write_tensors(tmp_path / "two", tensors[::-1])
    assert first == second
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert first.size_bytes == (tmp_path / "one").stat().st_size


def test_every_byte_is_reported_once(tmp_path: Path) -> None:
    save_file(sample(), tmp_path / "in")
    tensors = [copied(t) for t in read_tensors(tmp_path / "in")]
    counts: list[int] = []
    write_tensors(tmp_path / "out", tensors, counts.append)
    assert sum(counts) == sum(t.size_bytes for t in tensors)


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_refused_with_its_name(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    folder = tmp_path_factory.mktemp("cut")
    save_file({"a": torch.ones(16, 16)}, folder / "w.safetensors")
    data = (folder / "w.safetensors").read_bytes()
    (folder / "w.safetensors").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(WeightsError, match=r"w\.safetensors"):
        read_tensors(folder / "w.safetensors")


def test_a_cut_file_says_both_sizes(tmp_path: Path) -> None:
    save_file({"a": torch.ones(16, 16)}, tmp_path / "w")
    data = (tmp_path / "w").read_bytes()
    (tmp_path / "w").write_bytes(data[:-7])
    with pytest.raises(WeightsError, match=f"cut short: expected {len(data)} bytes, found {len(data) - 7}"):
        read_tensors(tmp_path / "w")


def test_a_lengthened_file_says_both_sizes(tmp_path: Path) -> None:
    save_file({"a": torch.ones(16, 16)}, tmp_path / "w")
    data = (tmp_path / "w").read_bytes()
    (tmp_path / "w").write_bytes(data + b"xx")
    with pytest.raises(WeightsError, match=f"expected {len(data)} bytes, found {len(data) + 2}"):
        read_tensors(tmp_path / "w")


def test_a_git_lfs_pointer_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(LFS_POINTER)
    with pytest.raises(WeightsError, match="Git LFS pointer"):
        read_tensors(tmp_path / "w")


def with_header(header: bytes, body: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + body


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (with_header(b"not json"), "damaged header"),
        (with_header(b'{"a": 3}'), "damaged header"),
        (with_header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', bytes(4)), "needs 8 bytes"),
        (with_header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', bytes(8)), "lies at 4-8"),
        (with_header(b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,-4]}}'), "damaged header"),
        (with_header(b'{"a":{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}}', bytes(4)), "'Q9'"),
        ((1 << 62).to_bytes(8, "little") + b"{}", "no header length"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, data: bytes, word: str) -> None:
    (tmp_path / "w").write_bytes(data)
    with pytest.raises(WeightsError, match=word):
        read_tensors(tmp_path / "w")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="nothing-here"):
        read_tensors(tmp_path / "nothing-here")


def test_a_tensor_with_other_bytes_than_its_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="has 4 bytes"):
        write_tensors(tmp_path / "w", [NewTensor("a", "F32", (2,), lambda: [bytes(4)])])
