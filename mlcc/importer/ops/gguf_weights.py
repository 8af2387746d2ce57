"""How weights of GGUF files, which traces hold as one op each, become nodes of the graph IR."""

from __future__ import annotations

from torch.fx import Node

from mlcc.gguf_blocks import FORMATS, results
from mlcc.importer.context import Context
from mlcc.ir.types import DTYPES, Handler, Tensor


def _dequantize(context: Context, node: Node) -> Tensor:
    bound = context.bind(node)
    raw, kind, heads = context.tensor(bound["raw"]), bound["kind"], bound["heads"]
    fakes = results(context.fake(bound["raw"]), kind)
    builder, form = context.builder, FORMATS[kind]

    def part(name: str, place: int) -> Tensor:
        (handle,) = builder.extern_call(
            f"mlcc.gguf_{name}.default",
            [builder.reference(0), kind, heads],
            [],
            [raw.handle],
            [context.tensor_type(node, fakes[place])],
            random=False,
            effects=False,
            mutates=[],
            aliases=False,
        )
        return Tensor(handle, DTYPES[fakes[place].dtype])

    integers = part("integers", 0)
    if form.has_halves:
        low = context.pointwise("and", integers, context.number(15, "u8"))
        high = context.pointwise("shift_right", integers, context.number(4, "u8"))
        integers = context.cat([low, high], 1)
    rows, groups = context.shape(fakes[1])
    value = context.cast(context.reshape(integers, [rows, groups, context.size(form.group)]), "f32")
    if form.zero:
        value = context.pointwise("sub", value, context.number(form.zero, "f32"))

    def beside(name: str, place: int) -> Tensor:
        of_groups = context.cast(part(name, place), "f32")
        return context.reshape(of_groups, [rows, groups, context.size(1)])

    value = context.pointwise("mul", value, beside("scales", 1))
    if form.has_minima:
        value = context.pointwise("add", value, beside("minima", 2))
    return context.reshape(value, context.shape(fakes[3]))


HANDLERS: dict[str, Handler] = {"mlcc.gguf_dequantize.default": _dequantize}
