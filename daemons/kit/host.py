"""The machine under a daemon: its hardware profile, memory and processes. The only psutil among the daemons."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import psutil

from meshnet.domain.nodes import Accelerator, HardwareProfile

_CGROUP_V2 = Path("/sys/fs/cgroup/memory.max")
_CGROUP_V2_USED = Path("/sys/fs/cgroup/memory.current")
_CGROUP_V1 = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
_CGROUP_V1_USED = Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")


def hardware_profile(disk: Path, accelerators: tuple[Accelerator, ...] = ()) -> HardwareProfile:
    """What this machine is. ``accelerators`` come from whoever may import torch; ``disk`` is where models lie."""
    memory = psutil.virtual_memory()
    total, available = memory_limits(memory.total, memory.available)
    return HardwareProfile(
        cpu_model=cpu_model(),
        cores_physical=psutil.cpu_count(logical=False) or 0,
        cores_logical=psutil.cpu_count() or 0,
        ram_total_bytes=total,
        ram_available_bytes=available,
        swap_total_bytes=psutil.swap_memory().total,
        disk_free_bytes=shutil.disk_usage(disk).free,
        os=f"{platform.system()} {platform.release()} {platform.machine()}"[:128],
        python=platform.python_version(),
        accelerators=accelerators,
    )


def memory_limits(total: int, available: int) -> tuple[int, int]:
    """Total and available bytes, cut to a container's limit where there is one."""
    for limit_file, used_file in ((_CGROUP_V2, _CGROUP_V2_USED), (_CGROUP_V1, _CGROUP_V1_USED)):
        limit = _read_int(limit_file)
        if limit is not None and 0 < limit < total:
            return limit, min(available, max(0, limit - (_read_int(used_file) or 0)))
    return total, available


def available_bytes() -> int:
    memory = psutil.virtual_memory()
    return memory_limits(memory.total, memory.available)[1]


def rss_bytes() -> int:
    """Resident memory of this process."""
    return psutil.Process().memory_info().rss


def process_started(pid: int) -> float | None:
    """Unix seconds at which the process started; None when there is none."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def cpu_model() -> str:
    """The processor's name as people know it."""
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith(("model name", "Hardware", "Model")):
                return line.split(":", 1)[1].strip()[:128] or "unknown"
    except OSError:
        pass
    return (platform.processor() or platform.machine() or "unknown")[:128]


def _read_int(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
