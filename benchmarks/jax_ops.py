"""A workload as a function of JAX: its graph of core ATen ops, op by op in jax.numpy.

Only what the workloads use. Ops that JAX has a function of its own for (gelu, softmax) are that function, as somebody
who writes JAX would call it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from benchmarks.roofline import trace
from benchmarks.workloads import Case

jax.config.update("jax_enable_x64", True)

_DTYPES = {
    torch.float32: jnp.float32,
    torch.bfloat16: jnp.bfloat16,
    torch.int8: jnp.int8,
    torch.int64: jnp.int64,
    torch.bool: jnp.bool_,
}


def to_array(tensor: Tensor) -> Any:
    """A copy as an array of JAX."""
    if tensor.dtype == torch.bfloat16:
        return jnp.array(tensor.float().numpy(), dtype=jnp.bfloat16)
    return jnp.array(tensor.numpy())


def to_tensor(array: Any) -> Tensor:
    """A copy as a tensor."""
    if array.dtype == jnp.bfloat16:
        return torch.from_numpy(numpy.array(array.astype(jnp.float32))).bfloat16()
    return torch.from_numpy(numpy.array(array))


def translate(case: Case) -> Callable[..., tuple[Any, ...]]:
    """The pure form of the case as a function of a seed and of arrays.

    NotImplementedError for an op that stands in no table here.
    """
    graph = trace(case)
    missing = {
        str(node.target)
        for node in graph.graph.nodes
        if node.op == "call_function" and _name(node) not in _OPS | _RANDOM_OPS
    }
    if missing:
        raise NotImplementedError(f"no form in JAX: {', '.join(sorted(missing))}")
    return lambda seed, *arrays: _run(graph, seed, arrays)


def _name(node: Node) -> str:
    if node.target is operator.getitem:
        return "getitem"
    return str(node.target).split(".")[1]


def _run(graph: GraphModule, seed: Any, arrays: Sequence[Any]) -> tuple[Any, ...]:
    given = iter(arrays)
    values: dict[Node, Any] = {}
    for place, node in enumerate(graph.graph.nodes):
        args = map_arg(node.args, values.__getitem__)
        kwargs = map_arg(node.kwargs, values.__getitem__)
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "get_attr":
            values[node] = to_array(getattr(graph, str(node.target)))
        elif node.op == "call_function" and _name(node) in _RANDOM_OPS:
            key = jax.random.fold_in(jax.random.key(place), seed)
            values[node] = _RANDOM_OPS[_name(node)](key, *args, **kwargs)
        elif node.op == "call_function":
            values[node] = _OPS[_name(node)](*args, **kwargs)
        else:
            return tuple(args[0])
    raise ValueError("the graph returns nothing")


def _mean(x: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
    return jnp.mean(x, None if dims is None else tuple(dims), keepdims=keepdim)


def _sum(x: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
    return jnp.sum(x, tuple(dims) if dims else None, keepdims=keepdim)


def _var_mean(x: Any, dims: Any = None, *, correction: int = 1, keepdim: bool = False) -> Any:
    axes = tuple(dims) if dims else None
    mean = jnp.mean(x, axes, keepdims=keepdim)
    return jnp.var(x, axes, ddof=correction, keepdims=keepdim), mean


def _layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axes, keepdims=True)
    scale = jax.lax.rsqrt(jnp.var(wide, axes, keepdims=True) + eps)
    y = (wide - mean) * scale
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).astype(x.dtype), mean, scale


def _group_norm(
    x: Any, weight: Any, bias: Any, n: int, c: int, hw: int, groups: int, eps: float
) -> Any:
    rows = x.reshape(n, groups, c // groups * hw)
    mean = jnp.mean(rows, -1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.var(rows, -1, keepdims=True) + eps)
    y = ((rows - mean) * scale).reshape(x.shape)
    shape = (1, c) + (1,) * (x.ndim - 2)
    return y * weight.reshape(shape) + bias.reshape(shape), mean, scale


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, _: float, eps: float
) -> Any:
    axes = (0, *range(2, x.ndim))
    if training:
        mean, var = jnp.mean(x, axes), jnp.var(x, axes)
    shape = (1, -1) + (1,) * (x.ndim - 2)
    scale = jax.lax.rsqrt(var + eps) * weight
    return (x - mean.reshape(shape)) * scale.reshape(shape) + bias.reshape(shape), mean, scale


def _windows(x: Any, init: Any, op: Any, size: Any, step: Any, padding: Any) -> Any:
    edges = ((0, 0), (0, 0), *((p, p) for p in padding))
    return jax.lax.reduce_window(x, init, op, (1, 1, *size), (1, 1, *step), edges)


def _pair(value: Any) -> Any:
    return tuple(value) if len(value) == 2 else (value[0], value[0])


def _max_pool(x: Any, size: Any, step: Any = (), padding: Any = (0, 0), *_: Any) -> Any:
    pooled = _windows(x, -jnp.inf, jax.lax.max, _pair(size), _pair(step or size), _pair(padding))
    return pooled, None


def _avg_pool(x: Any, size: Any, step: Any = (), *_: Any) -> Any:
    size = _pair(size)
    total = _windows(x, 0.0, jax.lax.add, size, _pair(step) if step else size, (0, 0))
    return total / (size[0] * size[1])


def _index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    place = tuple(slice(None) if index is None else index for index in indices)
    return x.at[place].add(values) if accumulate else x.at[place].set(values)


def _split(x: Any, sizes: Sequence[int], dim: int = 0) -> Any:
    return jnp.split(x, numpy.cumsum(sizes)[:-1].tolist(), dim)


def _take(x: Any, indices: Any) -> Any:
    return x[tuple(slice(None) if index is None else index for index in indices)]


def _pad(x: Any, pads: Sequence[int], value: float = 0.0) -> Any:
    widths = [(0, 0)] * x.ndim
    for i in range(len(pads) // 2):
        widths[x.ndim - 1 - i] = (pads[2 * i], pads[2 * i + 1])
    return jnp.pad(x, widths, constant_values=value)


def _cast(x: Any, *, dtype: Any = None, **_: Any) -> Any:
    return x.astype(_DTYPES[dtype]) if dtype is not None else x


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    return jnp.clip(x, low, high)


def _gather(x: Any, dim: int, index: Any, **_: Any) -> Any:
    return jnp.take_along_axis(x, index, dim)


def _max_with_index(x: Any, dim: int, keepdim: bool = False) -> Any:
    return jnp.max(x, dim, keepdims=keepdim), jnp.argmax(x, dim, keepdims=keepdim)


# Of a key of JAX's own generator, then what the op is called with.
_RANDOM_OPS: dict[str, Callable[..., Any]] = {
    "bernoulli": lambda key, x, p: jax.random.bernoulli(key, p, x.shape).astype(x.dtype),
}

_OPS: dict[str, Callable[..., Any]] = {
    "getitem": operator.getitem,
    "_log_softmax": lambda x, dim, _: jax.nn.log_softmax(x, dim),
    "_softmax": lambda x, dim, _: jax.nn.softmax(x, dim),
    "_to_copy": _cast,
    "abs": jnp.abs,
    "add": lambda x, y: x + y,
    "amax": lambda x, dims=(), keepdim=False: jnp.max(x, tuple(dims) or None, keepdims=keepdim),
    "avg_pool2d": _avg_pool,
    "cat": lambda parts, dim=0: jnp.concatenate(parts, dim),
    "clamp": _clamp,
    "clone": lambda x, **_: x,
    "constant_pad_nd": _pad,
    "cos": jnp.cos,
    "cumsum": lambda x, dim, **_: jnp.cumsum(x, dim),
    "div": lambda x, y: x / y,
    "embedding": lambda table, index, *_: table[index],
    "empty": lambda shape, *, dtype, **_: jnp.zeros(shape, _DTYPES[dtype]),
    "exp": jnp.exp,
    "expand": lambda x, shape: jnp.broadcast_to(x, shape),
    "gather": _gather,
    "gelu": lambda x, approximate="none": jax.nn.gelu(x, approximate=approximate == "tanh"),
    "index": _take,
    "index_put": _index_put,
    "lerp": lambda x, y, weight: x + weight * (y - x),
    "log": jnp.log,
    "lt": lambda x, y: x < y,
    "max": _max_with_index,
    "max_pool2d_with_indices": _max_pool,
    "mean": _mean,
    "mul": lambda x, y: x * y,
    "native_batch_norm": _batch_norm,
    "native_group_norm": _group_norm,
    "native_layer_norm": _layer_norm,
    "ne": lambda x, y: x != y,
    "neg": jnp.negative,
    "permute": jnp.transpose,
    "pow": lambda x, y: x**y,
    "relu": jax.nn.relu,
    "round": jnp.round,
    "rsqrt": jax.lax.rsqrt,
    "scalar_tensor": lambda x, *, dtype=None, **_: jnp.asarray(x, _DTYPES[dtype]),
    "sigmoid": jax.nn.sigmoid,
    "sin": jnp.sin,
    "split_with_sizes": _split,
    "sqrt": jnp.sqrt,
    "squeeze": lambda x, dims: jnp.squeeze(x, tuple(dims)),
    "sub": lambda x, y: x - y,
    "sum": _sum,
    "tanh": jnp.tanh,
    "unsqueeze": jnp.expand_dims,
    "var_mean": _var_mean,
    "view": lambda x, shape: jnp.reshape(x, shape),
    "where": jnp.where,
}
