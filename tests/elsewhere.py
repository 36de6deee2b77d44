"""A device other than the CPU where there is none: tensors that say they are on `meta`, with their data on the CPU.

Work on tensors of both at once is refused, as a GPU refuses it, so a mask or an index made on the wrong device shows.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
# what a GPU takes from both
_COPIES = (torch.ops.aten.copy_, torch.ops.aten._to_copy, torch.ops.aten.to)


class Elsewhere(torch.Tensor):
    """`data_here`: its data."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, data: torch.Tensor):
        layout = {"strides": data.stride(), "storage_offset": data.storage_offset()}
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype, device=DEVICE, **layout)

    def __init__(self, data: torch.Tensor):
        self.data_here = data

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class _Made(TorchDispatchMode):
    """Tensors that are asked for on the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class _Given(TorchFunctionMode):
    """Tensors of given numbers on the device, which torch would make without data; and what the CPU cannot do alike."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.tensor and kwargs.get("device") == DEVICE:
            return Elsewhere(func(*args, **{**kwargs, "device": "cpu"}))
        if func is torch.Tensor.tolist and isinstance(args[0], Elsewhere):
            return args[0].data_here.tolist()
        if func is torch.histc:  # experts count integers on a GPU, which the CPU cannot
            args = (args[0].float(), *args[1:])
        if func is nn.functional.scaled_dot_product_attention:
            return _run(func, args, kwargs)
        return func(*args, **kwargs)


def _run(func, args: tuple, kwargs: dict):
    leaves = tree_leaves((args, kwargs))
    tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
    away = [t for t in tensors if isinstance(t, Elsewhere)]
    copies = getattr(func, "overloadpacket", None) in _COPIES
    if away and not copies and any(t.dim() for t in tensors if not isinstance(t, Elsewhere)):
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found {DEVICE} and cpu")
    there = next((d == DEVICE for d in leaves if isinstance(d, torch.device)), bool(away))
    result = func(*tree_map(_data, args), **tree_map(_data, kwargs))
    schema = getattr(func, "_schema", None)
    if schema is not None and schema.is_mutable:
        return kwargs.get("out", args[0])
    if copies and bool(away) != there:
        result = result.clone()
    return tree_map(lambda t: Elsewhere(t) if isinstance(t, torch.Tensor) else t, result) if there else result


def _data(thing):
    """What stands for it on the CPU."""
    if isinstance(thing, torch.device):
        return torch.device("cpu")
    return thing.data_here if isinstance(thing, Elsewhere) else thing


@contextmanager
def pretended() -> Iterator[None]:
    """Within the context, and in this thread, there is such a device."""
    # tensors like these cannot go in and out of inference mode
    with torch.inference_mode(), _Made(), _Given():
        yield


def moved(lm: nn.Module) -> nn.Module:
    """The model, moved there."""
    for module in lm.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(Elsewhere(parameter.data), requires_grad=False)
        for name, buffer in module._buffers.items():
            module._buffers[name] = Elsewhere(buffer)
    return lm
