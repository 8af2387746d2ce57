"""The compiled core.

Sizes are ints or texts of symbolic expressions ("s0*2 + 1"); dtypes are named as in the graph IR ("f32"), devices as in
torch ("cuda:0").
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_Size = int | str
# (dtype, shape), (dtype, shape, strides) or (dtype, shape, strides, device); None for a result that is no tensor.
_Type = (
    tuple[str, Sequence[_Size]]
    | tuple[str, Sequence[_Size], Sequence[_Size] | None]
    | tuple[str, Sequence[_Size], Sequence[_Size] | None, str]
    | None
)
# None, bool, int, float, str, a Value, an Argument, a list of such, or a pair of kind and text: ("sym", "s0*2"),
# ("dtype", "float32"), ("layout", "strided"), ("memory_format", "channels_last"), ("device", "cpu").
_Argument = Any
_Options = Mapping[str, bool | int | str] | None

class Argument:
    """An argument of an extern call, made by GraphBuilder."""

class Value:
    """A value of a graph under construction."""

    @property
    def is_size(self) -> bool: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> list[_Size]: ...
    @property
    def strides(self) -> list[_Size]: ...
    @property
    def device(self) -> str: ...
    @property
    def size(self) -> _Size: ...

class GraphBuilder:
    """A graph of the graph IR under construction."""

    def __init__(self, name: str = "graph") -> None: ...
    @staticmethod
    def parse(text: str) -> GraphBuilder: ...
    def print(self) -> str: ...
    def verify(self) -> None: ...
    @property
    def name(self) -> str: ...
    def add_symbol(
        self, name: str, low: int | None = None, high: int | None = None, hint: int | None = None
    ) -> None: ...
    def add_input(
        self,
        name: str,
        dtype: str,
        shape: Sequence[_Size],
        strides: Sequence[_Size] | None = None,
        device: str = "cpu",
        static: bool = False,
        range: tuple[int, int] | None = None,
    ) -> Value: ...
    def add_size_input(self, name: str, size: _Size) -> Value: ...
    def set_outputs(self, values: Sequence[Value]) -> None: ...
    def set_strides(self, value: Value, strides: Sequence[_Size]) -> None: ...
    def set_source(self, value: Value, source: str) -> None: ...
    def pointwise(self, op: str, operands: Sequence[Value]) -> Value: ...
    def cast(self, value: Value, dtype: str) -> Value: ...
    def permute(self, value: Value, dims: Sequence[int]) -> Value: ...
    def expand(self, value: Value, shape: Sequence[_Size]) -> Value: ...
    def reshape(self, value: Value, shape: Sequence[_Size]) -> Value: ...
    def slice(
        self, value: Value, dim: int, start: _Size, length: _Size, step: int = 1
    ) -> Value: ...
    def flip(self, value: Value, dims: Sequence[int]) -> Value: ...
    def window(
        self,
        value: Value,
        dim: int,
        count: _Size,
        size: _Size,
        step: int = 1,
        dilation: int = 1,
    ) -> Value: ...
    def spread(self, value: Value, dim: int, count: _Size, size: _Size) -> Value: ...
    def extend(self, value: Value, dim: int, before: int, extent: _Size, mode: str) -> Value: ...
    def pad(self, value: Value, dim: int, before: int, extent: _Size, number: float) -> Value: ...
    def cat(self, values: Sequence[Value], dim: int) -> Value: ...
    def reduce(self, op: str, value: Value, dims: Sequence[int], keepdim: bool) -> Value: ...
    def full(
        self, shape: Sequence[_Size], dtype: str, value: float, device: str = "cpu"
    ) -> Value: ...
    def full_int(
        self, shape: Sequence[_Size], dtype: str, value: int, device: str = "cpu"
    ) -> Value: ...
    def iota(
        self, length: _Size, dtype: str, start: _Size = 0, step: _Size = 1, device: str = "cpu"
    ) -> Value: ...
    def size_value(self, size: _Size, device: str = "cpu") -> Value: ...
    def size_result(self, size: _Size) -> Value: ...
    def take(
        self, x: Value, indices: Sequence[Value], dim: int, wrap: bool, error: str
    ) -> Value: ...
    def gather(self, x: Value, index: Value, dim: int, error: str = "gather") -> Value: ...
    def scatter(
        self,
        base: Value,
        index: Value,
        src: Value,
        dim: int,
        combine: str,
        ordered: bool,
        error: str = "scatter",
    ) -> Value: ...
    def index_put(
        self,
        base: Value,
        indices: Sequence[Value],
        src: Value,
        dim: int,
        combine: str,
        ordered: bool,
        wrap: bool,
        error: str,
    ) -> Value: ...
    def scan(self, x: Value, dim: int, combine: str) -> Value: ...
    def attend_gradients(
        self, weights: Value, of_scores: Value, of_means: Value, queries: Value, keys: Value
    ) -> Value: ...
    def extern_call(
        self,
        name: str,
        args: list[_Argument],
        kwargs: Mapping[str, _Argument] | Sequence[tuple[str, _Argument]] | None = None,
        operands: Sequence[Value] | None = None,
        results: list[_Type] = [],
        *,
        random: bool = False,
        effects: bool = False,
        mutates: Sequence[int] = [],
        aliases: bool = False,
    ) -> list[Value | None]:
        """Call a dispatcher op ("aten.addmm.default").

        `operands` are the values in the arguments, in order of appearance, unless given; references and `mutates`
        count them.
        """

    def extern_size(
        self,
        name: str,
        args: list[_Argument],
        kwargs: Mapping[str, _Argument] | Sequence[tuple[str, _Argument]] | None = None,
        operands: Sequence[Value] | None = None,
        size: _Size = ...,
        *,
        random: bool = False,
        effects: bool = False,
        mutates: Sequence[int] = [],
        aliases: bool = False,
    ) -> Value:
        """Call a dispatcher op whose result is an int, and call that int `size`, a new symbol."""

    @staticmethod
    def reference(place: int) -> Argument: ...
    @staticmethod
    def enum(kind: str, name: str) -> Argument: ...
    @staticmethod
    def size(size: _Size) -> Argument: ...

class Executable:
    """A compiled graph."""

    def __call__(self, inputs: list[Any]) -> list[torch.Tensor | int | float | None]:
        """Run on a list of tensors and ints, which is emptied; return the list of outputs."""

    @property
    def graph_text(self) -> str: ...
    @property
    def stats(self) -> dict[str, int | float]: ...
    @property
    def steps(self) -> list[str]:
        """Kernels ("launch add (3 nodes)") and calls ("call aten.sort.default") in the order in which they run."""

    @property
    def fusion_refusals(self) -> list[str]:
        """Why nodes did not join a kernel that computes or reads what they need, in program order."""

    def kernels(self, sizes: Mapping[str, int]) -> list[dict[str, Any]]:
        """Of each kernel in the order in which they run, by the values of the symbols: name, line, flops and bytes.

        flops is None where data tells how often a loop runs.
        """

    def arena_bytes_of(self, sizes: Mapping[str, int]) -> int:
        """Bytes of the arena of a call, by the values of the symbols."""

def compile(
    graph: GraphBuilder | str,
    options: _Options = None,
    for_file: bool = False,
    with_recipes: bool = False,
) -> Executable:
    """Compile a GraphBuilder's graph, which it gives up, or the text of one.

    Options are those of mlcc.config unless given. `for_file`: for `write_package`, also where this machine does not run
    the code; `with_recipes`: with what exchanges the weights of a package.
    """

def write_package(
    executable: Executable,
    path: str,
    manifest: Callable[[dict[str, int]], str],
    inputs: list[torch.Tensor | None],
    input_names: Sequence[str],
    output_names: Sequence[str],
    symbols: Sequence[tuple[str, str, int, int | None]],
    conditions: Sequence[tuple[str, str]],
    options: _Options = None,
    weight_names: Sequence[tuple[str, int]] | None = None,
) -> dict[str, int]:
    """Write a package (csrc/package) of an executable. UnsupportedError where it needs what a package has not.

    `inputs` are what the graph's inputs always are, None where the caller gives them. `symbols`: name in the graph, name
    for people, least and greatest value. `conditions`: an expression of sizes that is 1 where it holds, and its text.
    `weight_names`: names of the model's state_dict with the number of an input, or -1; then weights can be exchanged.
    `manifest` makes the text, given what is returned: code_bytes, weight_bytes, stack_bytes.
    """

def make_bundle(
    executable: Executable,
    name: str,
    has_weights: bool,
    inputs: list[torch.Tensor | None],
    input_names: Sequence[str],
    output_names: Sequence[str],
    options: _Options = None,
) -> dict[str, Any]:
    """An executable of fixed sizes as an object file whose function <name>_run runs it (csrc/package/bundle.h).

    `object` and `weights` are bytes, the latter empty where the object `has_weights`; the rest is for a header: `inputs`
    and `outputs` (name, dtype, sizes, is_written, strides or None of what is row-major), `errors` (status and text),
    `arena_bytes` and their `alignment`, `stack_bytes`, `code_bytes` of kernels, `weight_bytes`.
    """

def run_loop_kernel(
    text: str,
    sizes: Sequence[int],
    buffers: Sequence[torch.Tensor],
    backend: str = "cpu",
    options: _Options = None,
) -> None:
    """Run a loop-IR kernel over tensors in place; raise what a failed check names."""

def writes_overlap(arguments: Sequence[Any], written: Sequence[int]) -> bool:
    """Whether an argument at one of the places `written` (in order) may share elements with another one."""

def cache_info(options: _Options = None) -> dict[str, int | str]: ...
def clear_cache(options: _Options = None) -> None: ...
def mark_as_file(tensor: torch.Tensor) -> None: ...
def clear_packs() -> None: ...
def watch_weights(tensors: Sequence[torch.Tensor]) -> None:
    """Let graphs compiled from now on steal the large ones of these tensors (option `weights`)."""

def is_stolen(storage: torch.UntypedStorage) -> bool:
    """Whether a storage is that of a weight that was stolen."""

def address_of(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage, to tell storages apart; also where a stolen weight has none."""

def apply_memory_options(options: _Options = None) -> None:
    """Set how much freed memory this process keeps; each compilation does so too."""

def cpu_info(options: _Options = None) -> dict[str, Any]: ...
def gpu_info(options: _Options = None, index: int = 0) -> dict[str, str]:
    """What kernels for a GPU are generated for, or under "reason" why none are."""

def current_stream(device: str) -> int:
    """The handle of the stream that torch works on, 0 for the default one."""

def set_llvm_library(path: str) -> None: ...
def set_nvrtc_folders(folders: Sequence[str]) -> None: ...
def op_table() -> list[tuple[str, int, str, str, str]]:
    """Rows (op, arity, dtype rule, dtype domain, aten overloads) of the pointwise ops."""

def option_table() -> list[tuple[str, str, bool | int | str, str, str, str]]:
    """Rows (name, type, default, environment variable, class, help)."""

def sync_log_levels() -> None:
    """Read the levels of the loggers mlcc.<channel>; compile() does so by itself."""

def version() -> str: ...
def build_id() -> str: ...
def torch_version() -> str: ...

class CallDispatch:
    """Finds the executable for the arguments of a call, with forms, guards and results all in the core."""

    def __init__(self) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def add(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        dynamic: bool,
        facts: dict[str, Any],
    ) -> bool: ...
