"""What Dynamo is doing, and code that it leaves alone."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch


def backend_under_way() -> Any:
    """What Dynamo traces for just now."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        compiler = InstructionTranslator.current_tx().output.compiler_fn
    except AttributeError:
        return None
    compiler = inspect.unwrap(compiler)
    return getattr(compiler, "compiler_fn", compiler)


def without_dynamo(function: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """`function`, never traced by Dynamo."""
    disable = torch._dynamo.disable
    if "reason" in inspect.signature(disable).parameters:
        return disable(function, reason=reason)
    return disable(function)


@dataclass(frozen=True)
class Recompile:
    """Why Dynamo compiles a function again."""

    count: int  # 1 for the first recompile
    function: str
    filename: str
    line: int
    reason: str  # torch's words, one line


def current_frame() -> tuple[int, int] | None:
    """(frame id, how many times it was compiled before) of the compilation that is under way."""
    try:
        from torch._guards import CompileContext

        compile_id = CompileContext.current_compile_id()
    except (ImportError, AttributeError):
        return None
    if compile_id is None or compile_id.frame_id is None or compile_id.frame_compile_id is None:
        return None
    return int(compile_id.frame_id), int(compile_id.frame_compile_id)


def current_recompile() -> Recompile | None:
    """Why the compilation under way is not the first of its function; None if it is, or if torch does not say."""
    frame = current_frame()
    if frame is None or frame[1] == 0:
        return None
    try:
        from torch._dynamo.utils import guard_failures
    except ImportError:
        return None
    prefix = f"{frame[0]}/{frame[1] - 1}:"
    for code, reasons in guard_failures.items():
        for reason in reversed(reasons):
            if isinstance(reason, str) and reason.startswith(prefix):
                text = _first_line(reason.removeprefix(prefix))
                return Recompile(
                    frame[1], code.co_name, code.co_filename, code.co_firstlineno, text
                )
    return None


def value_now(source: str) -> Any:
    """What `source`, an expression of a guard ("G['SCALE']", "self.n"), is for the call that is compiled just now.

    LookupError where that cannot be told without running code of the user's, or where nothing is compiled.
    """
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        frame = InstructionTranslator.current_tx().output.root_tx
        names = {"G": frame.f_globals, "L": frame.f_locals, **frame.f_locals}
        return _look_up(ast.parse(source, mode="eval").body, names)
    except (AttributeError, SyntaxError, TypeError, ValueError) as error:
        raise LookupError(source) from error


def _look_up(expression: ast.expr, names: dict[str, Any]) -> Any:
    if isinstance(expression, ast.Name):
        return names[expression.id]
    if isinstance(expression, ast.Attribute):
        fields = vars(_look_up(expression.value, names))
        for where in (fields, fields.get("_modules", {})):
            if expression.attr in where:
                return where[expression.attr]
    elif isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Constant):
        container = _look_up(expression.value, names)
        if type(container) in (dict, list, tuple):
            return container[expression.slice.value]
    raise LookupError(ast.unparse(expression))


def _first_line(reason: str) -> str:
    text = reason.strip().split("\n", 1)[0]
    return re.sub(r"\s+", " ", text.split("  # ", 1)[0]).strip()


def is_traced() -> bool:
    """Whether this thread's call is what is compiled, as `torch.compiler.is_compiling` says of some thread's."""
    return (
        torch.compiler.is_dynamo_compiling()  # a constant for Dynamo, which drops the rest
        or torch._guards.TracingContext.try_get() is not None
        or torch._C._len_torch_dispatch_stack() > 0
    )


_of_jit = threading.RLock()  # of traces that need nothing of Dynamo


@contextlib.contextmanager
def no_other_trace() -> Iterator[None]:
    """No other thread traces inside: torch's tracing patches modules for all threads. Does not import Dynamo."""
    convert_frame = sys.modules.get("torch._dynamo.convert_frame")
    lock = getattr(convert_frame, "compile_lock", None) or contextlib.nullcontext()
    with lock, _of_jit:
        yield


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """The same for who is going to trace."""
    import torch._dynamo.convert_frame  # noqa: F401 (whose lock is taken)

    with no_other_trace():
        yield
