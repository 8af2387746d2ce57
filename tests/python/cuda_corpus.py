"""Programs whose kernels the tests and benchmarks of CUDA code look at: graphs that are compiled and seldom run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from mlcc import config
from mlcc._load import load_core
from mlcc.capture.session import decomposition_table, op_table
from mlcc.importer import fx_graph
from tests.python.cuda_tools import fake_driver

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
I8, I32, I64, BOOL = torch.int8, torch.int32, torch.int64, torch.bool


@dataclass(frozen=True)
class T:
    """A tensor to come."""

    shape: tuple[int, ...]
    dtype: torch.dtype = F32
    strides: tuple[int, ...] | None = None

    def fake(self, mode: FakeTensorMode, is_dynamic: bool) -> Any:
        """To be called under `mode`. With `is_dynamic` sizes above 1 are symbols."""
        shape: Any = self.shape
        if is_dynamic:
            shape = mode.from_tensor(torch.empty(self.shape, device="meta")).shape
        if self.strides is not None:
            return torch.empty_strided(shape, self.strides, dtype=self.dtype)
        return torch.empty(shape, dtype=self.dtype)


def t(*shape: int, dtype: torch.dtype = F32, strides: tuple[int, ...] | None = None) -> T:
    """Short for T."""
    return T(shape, dtype, strides)


@dataclass(frozen=True)
class Program:
    """A function of tensors; with `trains` also its gradients, in the same graph."""

    name: str
    function: Callable[..., Any]
    inputs: Sequence[T]
    trains: bool = False
    is_dynamic: bool = False

    def graph_text(self) -> str:
        """The imported graph."""
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        with mode:
            arguments = [made.fake(mode, self.is_dynamic) for made in self.inputs]
            function = self._with_gradients if self.trains else self.function
            table = decomposition_table(self.trains)
            gm = make_fx(_flat(function), decomposition_table=table)(*arguments)
        gm.graph.eliminate_dead_code()
        builder = load_core().GraphBuilder("g")
        fx_graph.import_graph(gm, builder, op_table())
        return str(builder.print())

    def _with_gradients(self, *inputs: Any) -> list[Any]:
        leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
        with torch.enable_grad():
            result = self.function(*leaves)
        wanted = [x for x in leaves if x.requires_grad]
        seed = torch.ones_like(result) if result.dim() == 0 else result.detach()
        return [result.detach(), *torch.autograd.grad(result, wanted, seed)]


TENSOR_TYPE = re.compile(r"\b(?:bool|[iuf]\d+|bf16)\[[^]]*\](?: strides\((?:[^()]|\([^()]*\))*\))?")


def on_gpu(graph_text: str) -> str:
    """The graph with all its tensors on a GPU. (Autograd does not run on tensors of a device that is missing.)"""
    return TENSOR_TYPE.sub(lambda match: match[0] + " @cuda:0", graph_text)


def _flat(function: Callable[..., Any]) -> Callable[..., Any]:
    def flat(*inputs: Any) -> list[Any]:
        result = function(*inputs)
        return list(result) if isinstance(result, list | tuple) else [result]

    return flat


def rms_norm(x: Any, weight: Any) -> Any:
    """In f32, rounded once before the weight."""
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def _rotary(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


# Functions that may share a kernel; of one alone there are programs enough.
_FUNCTIONS = (
    "exp exp2 expm1 log log1p log2 log10",
    "sin cos tan",
    "asin acos atan",
    "sinh cosh tanh",
    "asinh acosh atanh",
    "erf erfc sigmoid",
)


def _sum_of(names: str, x: torch.Tensor) -> torch.Tensor:
    total = torch.atan2(x, x + 1) + torch.hypot(x, x * 2)
    for name in names.split():
        total = total + getattr(torch, name)(x)
    return total


def _adamw(p: Any, g: Any, m: Any, v: Any) -> Any:
    m = m * 0.9 + g * 0.1
    v = v * 0.999 + g * g * 0.001
    return p * 0.999 - 1e-3 * m / (v.sqrt() + 1e-8), m, v


def pointwise() -> Iterator[Program]:
    """Broadcasts, casts, strides and odd sizes."""
    for dtype in (F32, BF16, F16):
        name = str(dtype).removeprefix("torch.")
        big = t(4096, 1024, dtype=dtype)
        yield Program(f"add {name}", lambda x, y: x + y, [big, big])
        yield Program(
            f"gelu of a bias {name}", lambda x, b: F.gelu(x + b), [big, t(1024, dtype=dtype)]
        )
        yield Program(
            f"gelu tanh backward {name}",
            lambda x: F.gelu(x, approximate="tanh"),
            [big],
            trains=True,
        )
        yield Program(f"swiglu {name}", lambda x, y: F.silu(x) * y, [big, big], trains=True)
        yield Program(
            f"column broadcast {name}", lambda x, y: x * y, [big, t(4096, 1, dtype=dtype)]
        )
        yield Program(f"odd {name}", lambda x: x.exp() * 2, [t(1001, 333, dtype=dtype)])
        yield Program(f"small {name}", lambda x: x.tanh(), [t(3, 5, dtype=dtype)])
        yield Program(f"to f32 {name}", lambda x: x.float() * 2 + 1, [big])
        yield Program(f"from f32 {name}", lambda x, d=dtype: (x * 2).to(d), [t(4096, 1024)])
        yield Program(f"compare {name}", lambda x, y: torch.where(x > y, x, -y), [big, big])
        yield Program(f"transposed {name}", lambda x: x.t() * 2, [t(512, 768, dtype=dtype)])
        yield Program(
            f"sum with transposed {name}",
            lambda x, y: x + y.t(),
            [t(512, 768, dtype=dtype), t(768, 512, dtype=dtype)],
        )
        yield Program(
            f"any size {name}",
            lambda x, y: torch.sigmoid(x) * y,
            [t(512, 768, dtype=dtype)] * 2,
            is_dynamic=True,
        )
    yield Program("scalar", lambda x: x * 2 + 1, [t()])
    yield Program(
        "transcendentals",
        lambda x: torch.sin(x) + x.log1p().cos() * x.erf() - x.pow(1.7),
        [t(1 << 20)],
    )
    for dtype in (torch.float32, torch.float64):
        for names in _FUNCTIONS:
            yield Program(
                f"{names} {dtype}", lambda x, n=names: _sum_of(n, x), [t(1 << 20, dtype=dtype)]
            )
    yield Program("f64", lambda x: x.exp() / (1 + x * x), [t(4096, 256, dtype=torch.float64)])
    yield Program("i8 to f32", lambda x, s: x.float() * s, [t(4096, 1024, dtype=I8), t(1024)])
    yield Program(
        "i8 to bf16", lambda x, s: x.to(BF16) * s, [t(4096, 1024, dtype=I8), t(4096, 1, dtype=BF16)]
    )
    yield Program("f32 to i8", lambda x: (x * 127).round().clamp(-128, 127).to(I8), [t(4096, 1024)])
    yield Program(
        "integers",
        lambda x, y: (x // y) % 7 + (x << 2),
        [t(100000, dtype=I64), t(100000, dtype=I64)],
    )
    yield Program("i32", lambda x: (x * 3 - 1).abs().clamp(max=9), [t(99999, dtype=I32)])
    yield Program(
        "bools", lambda x, y: (x & ~y) | (x ^ y), [t(1 << 20, dtype=BOOL), t(1 << 20, dtype=BOOL)]
    )
    yield Program(
        "masked fill",
        lambda x, m: x.masked_fill(m, -1e9),
        [t(8, 128, 128), t(128, 128, dtype=BOOL)],
    )
    yield Program("causal mask", lambda x: x.tril(), [t(8, 128, 128, dtype=BF16)])
    yield Program("adamw", _adamw, [t(1 << 20)] * 4)
    yield Program(
        "residual and bias",
        lambda x, y, b: x + y + b,
        [t(64, 128, 768, dtype=BF16)] * 2 + [t(768, dtype=BF16)],
    )
    yield Program("nchw bias", lambda x, b: F.relu(x + b[:, None, None]), [t(8, 64, 56, 56), t(64)])
    yield Program(
        "channels last",
        lambda x, b: F.relu(x * b[:, None, None]),
        [t(8, 64, 28, 28, strides=(64 * 784, 1, 64 * 28, 64)), t(64)],
    )
    yield Program("strided", lambda x: x[:, ::2] * 2, [t(1024, 512)])
    yield Program("flip", lambda x: x.flip(1) + 1, [t(1024, 512)])
    yield Program(
        "heads", lambda x: (x * 0.125).transpose(1, 2).contiguous(), [t(8, 128, 12, 64, dtype=BF16)]
    )
    yield Program(
        "merged heads", lambda x: (x + 1).transpose(1, 2).reshape(8, 128, 768), [t(8, 12, 128, 64)]
    )
    yield Program(
        "rotary",
        _rotary,
        [t(4, 12, 128, 64, dtype=BF16), t(128, 64, dtype=BF16), t(128, 64, dtype=BF16)],
    )
    yield Program(
        "rotary trained", _rotary, [t(4, 12, 128, 64), t(128, 64), t(128, 64)], trains=True
    )
    yield Program(
        "dropout",
        lambda x, m: x * m * (1 / 0.9),
        [t(64, 1024), t(64, 1024, dtype=BOOL)],
        trains=True,
    )


def reductions() -> Iterator[Program]:
    """Of rows, columns, everything, and with indices."""
    for dtype in (F32, BF16):
        name = str(dtype).removeprefix("torch.")
        for rows, columns in ((4096, 1024), (64, 50257), (33, 129), (100000, 16)):
            x = t(rows, columns, dtype=dtype)
            yield Program(f"row sums {rows}x{columns} {name}", lambda x: x.sum(1), [x])
            yield Program(f"column sums {rows}x{columns} {name}", lambda x: x.sum(0), [x])
        yield Program(f"sum of all {name}", lambda x: x.sum(), [t(4096, 1024, dtype=dtype)])
        yield Program(
            f"mean of squares {name}", lambda x: x.square().mean(), [t(1001, 77, dtype=dtype)]
        )
        yield Program(f"largest {name}", lambda x: x.amax((0, 2)), [t(64, 32, 200, dtype=dtype)])
        yield Program(f"argmax {name}", lambda x: x.argmax(1), [t(256, 32000, dtype=dtype)])
        yield Program(f"maximum and index {name}", lambda x: x.max(0), [t(512, 300, dtype=dtype)])
        yield Program(f"deviation {name}", lambda x: x.std(1), [t(512, 3000, dtype=dtype)])
        yield Program(
            f"norm {name}", lambda x: x.norm(dim=1), [t(512, 768, dtype=dtype)], trains=True
        )
        yield Program(
            f"logsumexp {name}", lambda x: x.logsumexp(1), [t(512, 768, dtype=dtype)], trains=True
        )
        yield Program(
            f"rows of any size {name}",
            lambda x: x.sum(1),
            [t(512, 768, dtype=dtype)],
            is_dynamic=True,
        )
        yield Program(
            f"columns of any size {name}",
            lambda x: x.sum(0),
            [t(512, 768, dtype=dtype)],
            is_dynamic=True,
        )
    yield Program("any and all", lambda x: ((x > 2).any(1), (x > -9).all(0)), [t(512, 768)])
    yield Program("integer sums", lambda x: (x.sum(0), x.amax(1)), [t(512, 768, dtype=I32)])
    yield Program("count nonzero", lambda x: (x > 0).sum(), [t(512, 768)])
    yield Program("product", lambda x: x.prod(1), [t(512, 100, dtype=torch.float64)])
    yield Program("middle", lambda x: x.sum(1), [t(16, 200, 96)])
    yield Program("outer and inner", lambda x: x.sum((0, 2)), [t(16, 64, 784)])
    yield Program(
        "bias gradient", lambda g: g.float().sum((0, 1)).to(BF16), [t(16, 512, 768, dtype=BF16)]
    )


def norms() -> Iterator[Program]:
    """Softmax, layer, RMS, group and batch norms, forward and backward."""
    for dtype in (F32, BF16, F16):
        name = str(dtype).removeprefix("torch.")
        for columns in (128, 1000, 1024, 4096, 50257):
            x = t(512, columns, dtype=dtype)
            yield Program(f"softmax {columns} {name}", lambda x: x.softmax(-1), [x])
        for columns in (64, 768, 1024, 4096, 8192):
            x, w = t(512, columns, dtype=dtype), t(columns, dtype=dtype)
            yield Program(
                f"layer norm {columns} {name}",
                lambda x, w, b: F.layer_norm(x, w.shape, w, b),
                [x, w, w],
            )
            yield Program(f"rms norm {columns} {name}", rms_norm, [x, w])
        x, w = t(512, 768, dtype=dtype), t(768, dtype=dtype)
        yield Program(f"softmax trained {name}", lambda x: x.softmax(-1), [x], trains=True)
        yield Program(f"log softmax trained {name}", lambda x: x.log_softmax(-1), [x], trains=True)
        yield Program(
            f"layer norm trained {name}",
            lambda x, w, b: F.layer_norm(x, (768,), w, b),
            [x, w, w],
            trains=True,
        )
        yield Program(f"rms norm trained {name}", rms_norm, [x, w], trains=True)
        yield Program(
            f"residual layer norm {name}",
            lambda x, y, w, b: F.layer_norm(x + y, (768,), w, b) * 2,
            [x, x, w, w],
        )
        yield Program(
            f"masked softmax {name}",
            lambda x, m: (x * 0.125 + m).softmax(-1),
            [t(8, 12, 128, 128, dtype=dtype), t(128, 128, dtype=dtype)],
        )
    yield Program("softmax of any size", lambda x: x.softmax(-1), [t(512, 768)], is_dynamic=True)
    yield Program(
        "layer norm of any size", lambda x: F.layer_norm(x, (768,)), [t(512, 768)], is_dynamic=False
    )
    yield Program("softmax of columns", lambda x: x.softmax(0), [t(128, 768)])
    yield Program("group norm", lambda x: F.group_norm(x, 8), [t(8, 64, 28, 28)], trains=True)
    yield Program("instance norm", lambda x: F.instance_norm(x), [t(4, 16, 32, 32)])
    yield Program(
        "batch norm",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        [t(8, 64, 28, 28), t(64), t(64)],
        trains=True,
    )
    yield Program(
        "batch norm of inference",
        lambda x, m, v, w, b: F.relu(F.batch_norm(x, m, v, w, b)),
        [t(8, 64, 28, 28)] + [t(64)] * 4,
    )


def losses() -> Iterator[Program]:
    """With targets, forward and backward."""
    for dtype in (F32, BF16):
        name = str(dtype).removeprefix("torch.")
        for classes in (10, 1000, 32000):
            yield Program(
                f"cross entropy {classes} {name}",
                F.cross_entropy,
                [t(512, classes, dtype=dtype), t(512, dtype=I64)],
                trains=True,
            )
        x = t(512, 300, dtype=dtype)
        yield Program(f"mse {name}", F.mse_loss, [x, x], trains=True)
        yield Program(f"smooth l1 {name}", F.smooth_l1_loss, [x, x], trains=True)
        yield Program(
            f"bce with logits {name}", F.binary_cross_entropy_with_logits, [x, x], trains=True
        )
        yield Program(
            f"kl {name}",
            lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
            [x, x],
            trains=True,
        )
    yield Program("cosine", lambda x, y: F.cosine_similarity(x, y), [t(512, 300)] * 2, trains=True)


def movements() -> Iterator[Program]:
    """Gathers, concatenations, copies."""
    ids = t(16, 128, dtype=I64)
    for dtype in (F32, BF16):
        name = str(dtype).removeprefix("torch.")
        yield Program(f"embedding {name}", F.embedding, [ids, t(32000, 768, dtype=dtype)])
        yield Program(
            f"embedding trained {name}", F.embedding, [ids, t(1000, 64, dtype=dtype)], trains=True
        )
        yield Program(
            f"embeddings and norm {name}",
            lambda i, w, p: F.layer_norm(F.embedding(i, w) + p, (768,)),
            [ids, t(32000, 768, dtype=dtype), t(128, 768, dtype=dtype)],
        )
        yield Program(
            f"cat {name}",
            lambda x, y: torch.cat([x, y * 2, x], 1),
            [t(512, 96, dtype=dtype), t(512, 33, dtype=dtype)],
        )
        yield Program(
            f"cat of rows {name}",
            lambda x, y: torch.cat([x, y]) + 1,
            [t(512, 96, dtype=dtype), t(100, 96, dtype=dtype)],
        )
        yield Program(f"pad {name}", lambda x: F.pad(x, (1, 2, 0, 3)), [t(8, 60, 61, dtype=dtype)])
        yield Program(
            f"transpose copy {name}", lambda x: x.t().contiguous(), [t(1024, 768, dtype=dtype)]
        )
    yield Program(
        "gather", lambda x, i: x.gather(1, i), [t(512, 1000), t(512, 5, dtype=I64)], trains=True
    )
    yield Program("index", lambda x, i: x[:, i] * 2, [t(64, 1000), t(300, dtype=I64)])
    yield Program(
        "index select", lambda x, i: x.index_select(0, i), [t(1000, 64), t(300, dtype=I64)]
    )
    yield Program("stack", lambda x, y: torch.stack([x, y], 1), [t(512, 96)] * 2)
    yield Program("roll", lambda x: x.roll(3, 1), [t(512, 96)])
    yield Program("repeat", lambda x: x.repeat(2, 3), [t(512, 96)])
    yield Program("one hot", lambda i: F.one_hot(i, 100).float(), [t(512, dtype=I64)])
    yield Program("arange", lambda x: x + torch.arange(768, device=x.device), [t(512, 768)])
    yield Program("upsample", lambda x: F.interpolate(x, scale_factor=2), [t(4, 16, 20, 20)])
    yield Program(
        "patches", lambda x: x.unfold(1, 16, 16).transpose(1, 2).reshape(64, -1), [t(64, 160)]
    )


def programs() -> list[Program]:
    """All of them; names differ."""
    found = [*pointwise(), *reductions(), *norms(), *losses(), *movements()]
    assert len({program.name for program in found}) == len(found)
    return found


# -- their kernels


@dataclass(frozen=True)
class LoopKernel:
    """One kernel of a program, as loop IR."""

    name: str  # an identifier, unlike those of the others
    text: str


def lower(programs: Sequence[Program], folder: Path) -> list[LoopKernel]:
    """The kernels of the programs as they are made for sm_90, equal ones once. Leaves files in `folder`.

    The whole path runs, on a driver and a compiler that do nothing: those of the C++ tests.
    """
    options = {"dump": "loop", "dump_dir": str(folder), "cache_size_mb": 0}
    options |= dict.fromkeys(("libcuda", "nvrtc"), str(fake_driver()))
    kernels: dict[str, LoopKernel] = {}
    for program in programs:
        before = set(folder.iterdir())
        load_core().compile(on_gpu(program.graph_text()), config.resolve(options))
        files = [path for made in set(folder.iterdir()) - before for path in made.glob("*.loop")]
        for number, path in enumerate(sorted(files)):
            text = path.read_text()
            name = re.sub(r"\W+", "_", f"{program.name} {number}")
            kernels.setdefault(text, LoopKernel(name, text.replace("@k(", f"@{name}(", 1)))
    return list(kernels.values())
