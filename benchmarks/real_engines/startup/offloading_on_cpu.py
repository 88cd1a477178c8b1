"""vLLM's tiers of offloaded blocks on a machine without a GPU: only the copying is another.

vLLM copies between a GPU's memory and the host's, on CUDA's streams, and refuses to do so elsewhere. Here both are the
host's memory, so the same copies, by the same addresses that vLLM's own code worked out, are made at once by memmove.
The setting `spec_module_path` names this file, as it names any specification that does not come with vLLM.
"""

from __future__ import annotations

import contextlib
import ctypes
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, CanonicalKVCacheTensor, OffloadingWorker
from vllm.v1.kv_offload.cpu import gpu_worker
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class DeviceMemory(torch.Tensor):  # type: ignore[misc] # where this is checked, there is no torch
    """The memory that stands for the GPU's."""

    is_cuda = True


class DoneEvent:
    """Event of a stream that has finished all its work."""

    def __init__(self, **_: object) -> None: ...

    def record(self, _stream: object) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def elapsed_time(self, _end: DoneEvent) -> float:
        return 0.01  # milliseconds


class Stream:
    """A stream on which there is never anything to wait for."""

    def wait_stream(self, _other: object) -> None: ...

    def wait_event(self, _event: object) -> None: ...


class AsModule:
    """A module with some of its names replaced."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        self.__dict__ |= {"_module": module, **replaced}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def copy(
    sources: torch.Tensor, targets: torch.Tensor, sizes: torch.Tensor, *, is_src_access_order_any: bool = False
) -> None:
    """Copies bytes from addresses to addresses."""
    del is_src_access_order_any
    for source, target, size in zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(target, source, size)


gpu_worker.torch = AsModule(torch, Event=DoneEvent)
gpu_worker.ops = SimpleNamespace(swap_blocks_batch=copy)
gpu_worker.current_platform = AsModule(
    gpu_worker.current_platform, Stream=Stream, current_stream=Stream, stream=contextlib.nullcontext
)


class TieringOnCpu(TieringOffloadingSpec):  # type: ignore[misc] # nor vLLM
    """TieringOffloadingSpec, with a worker on the CPU."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The worker, which takes the engine's tensors for a GPU's."""
        self._worker: OffloadingWorker | None
        if self._worker is None:
            tensors = [
                CanonicalKVCacheTensor(each.tensor.as_subclass(DeviceMemory), each.page_size_bytes)
                for each in kv_caches.tensors
            ]
            self._worker = self.create_worker(CanonicalKVCaches(tensors, kv_caches.group_data_refs))
        return self._worker
