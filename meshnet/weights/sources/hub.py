"""A model of the Hugging Face hub, through huggingface_hub: only the files a model needs, resumed when interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from meshnet.domain.errors import NotFound, WeightsError
from meshnet.weights import layout
from meshnet.weights.checkpoint import INDEX, SINGLE
from meshnet.weights.progress import Progress
from meshnet.weights.shape import read_json
from meshnet.weights.sources import key_of
from meshnet.weights.tokenizer_files import SLOW_TOKENIZERS

_SMALL_FILES = (
    layout.CONFIG,
    layout.GENERATION_CONFIG,
    layout.TOKENIZER,
    *layout.TOKENIZER_EXTRAS,
    layout.CHAT_TEMPLATE,
    "chat_template.json",
    *SLOW_TOKENIZERS,
    "merges.txt",
    INDEX,
)


@dataclass(frozen=True, slots=True)
class HubFile:
    name: str
    size_bytes: int


class Hub(Protocol):
    def files(self, repo_id: str) -> tuple[str, Sequence[HubFile]]:
        """The commit a repository stands at, and its files. Raises NotFound or WeightsError (code ``download``)."""
        ...

    def download(self, repo_id: str, commit: str, name: str, folder: Path, received: Callable[[int], None]) -> None:
        """One file to ``folder/name``, going on with what an interrupted download left there."""
        ...


@dataclass(slots=True)
class HubSource:
    """``repo_id`` is ``owner/name``."""

    repo_id: str
    hub: Hub
    _listing: tuple[str, Sequence[HubFile]] | None = field(default=None, init=False)

    @property
    def description(self) -> str:
        return f"hub {self.repo_id}"

    @property
    def default_key(self) -> str:
        return key_of(self.repo_id.rpartition("/")[2])

    def download_bytes(self) -> int:
        _, files = self._list()
        return sum(file.size_bytes for file in files if file.name.endswith(".safetensors") or file.name in _SMALL_FILES)

    def fetch(self, downloads: Path, progress: Progress) -> Path:
        """Small files first: a model that cannot be used is refused before its gigabytes."""
        commit, files = self._list()
        by_name = {file.name: file for file in files}
        if layout.CONFIG not in by_name:
            raise WeightsError(f"{self.repo_id} has no {layout.CONFIG}, so it is no model meshnet can read.")
        small = [by_name[name] for name in _SMALL_FILES if name in by_name]
        self._download(commit, small, downloads, progress, "fetching descriptions")
        weights = [by_name.get(name) or _absent(self.repo_id, name) for name in self._weight_names(downloads)]
        self._download(commit, weights, downloads, progress, "downloading")
        return downloads

    def _list(self) -> tuple[str, Sequence[HubFile]]:
        if self._listing is None:
            self._listing = self.hub.files(self.repo_id)
        return self._listing

    def _weight_names(self, downloads: Path) -> list[str]:
        if not (downloads / INDEX).is_file():
            return [SINGLE]
        weight_map = read_json(downloads / INDEX).get("weight_map")
        return sorted(set(weight_map.values())) if isinstance(weight_map, dict) else [SINGLE]

    def _download(self, commit: str, files: Sequence[HubFile], folder: Path, progress: Progress, step: str) -> None:
        total, done = sum(file.size_bytes for file in files), 0
        for file in files:
            here = folder / file.name
            if not here.is_file() or here.stat().st_size != file.size_bytes:
                self.hub.download(self.repo_id, commit, file.name, folder, _adder(progress, step, done, total))
            done += file.size_bytes
            progress(step, done, total)


def _adder(progress: Progress, step: str, base: int, total: int) -> Callable[[int], None]:
    return lambda received: progress(step, min(base + received, total), total)


def _absent(repo_id: str, name: str) -> HubFile:
    raise WeightsError(f"{repo_id} has no {name}. meshnet reads safetensors; pull another repository of the model.")


@dataclass(frozen=True, slots=True)
class HuggingFaceHub:
    """The real hub (or a mirror at ``endpoint``). huggingface_hub is imported when first asked."""

    endpoint: str | None = None

    def files(self, repo_id: str) -> tuple[str, Sequence[HubFile]]:
        hub = _library()
        with _Translated(repo_id):
            info = hub.HfApi(endpoint=self.endpoint).model_info(repo_id, files_metadata=True)
        return info.sha, [HubFile(s.rfilename, s.size or 0) for s in info.siblings or ()]

    def download(self, repo_id: str, commit: str, name: str, folder: Path, received: Callable[[int], None]) -> None:
        hub = _library()
        with _Translated(repo_id):
            hub.hf_hub_download(
                repo_id,
                name,
                revision=commit,
                local_dir=folder,
                endpoint=self.endpoint,
                tqdm_class=_bar(received),
            )


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise WeightsError(
            "Pulling from the Hugging Face hub needs huggingface_hub. Install it with: pip install 'meshnet-llm[node]'"
        ) from error
    return huggingface_hub


class _Translated:
    """The hub's errors as ours."""

    def __init__(self, repo_id: str) -> None:
        self._repo_id = repo_id

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or not isinstance(error, Exception):
            return
        from huggingface_hub import errors

        if isinstance(error, errors.GatedRepoError):
            raise WeightsError(
                f"{self._repo_id} asks for consent: accept its terms on the hub, then set HF_TOKEN and pull again."
            ) from error
        if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
            raise NotFound(
                f"The Hugging Face hub has no model {self._repo_id!r} (or it is private: HF_TOKEN)."
            ) from error
        if isinstance(error, OSError | errors.HfHubHTTPError) or type(error).__module__.startswith("httpx"):
            raise WeightsError(
                f"Downloading {self._repo_id} failed: {error}. Pull again to go on where it stopped.", code="download"
            ) from error


def _bar(received: Callable[[int], None]) -> type[Any]:
    """huggingface_hub reports through a tqdm class; this one counts and draws nothing."""
    from tqdm import tqdm

    class Counter(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": True})
            self.n = kwargs.get("initial") or 0

        def update(self, n: float | None = 1) -> bool | None:
            self.n += n or 0
            received(int(self.n))
            return None

    return Counter
