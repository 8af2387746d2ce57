"""What the core has to know of a trace to have its calls differentiated without AOTAutograd's autograd function."""

from __future__ import annotations

from typing import Any

from mlcc.capture.compiled_graph import CompiledGraph
from mlcc.capture.session import Session
from mlcc.importer.context import Output
from mlcc.torch_private import aot_metadata


def facts_of(session: Session, metadata: Any) -> dict[str, Any] | None:
    """For the core's Gradient; None where torch's autograd function is needed."""
    graph, form = session.forward_graph(), aot_metadata.gradient_form(metadata)
    if graph is None or form is None:
        return None
    outputs = graph.imported.outputs
    first_number = len(outputs) - form.num_numbers
    tensors, numbers = outputs[form.num_results : first_number], outputs[first_number:]
    results = [(outputs[place], gradient) for place, gradient in form.gradients]
    if any(one.kind != "value" for one in (*tensors, *(one for one, _ in results))):
        return None
    floats = [place for place, one in enumerate(numbers) if _is_float(one)]

    def compile_backward() -> dict[str, Any]:
        graph, function = session.compile_backward()
        facts = _facts_of_backward(graph, floats) if graph is not None else None
        return facts or {"function": function}

    return {
        "results": [
            (one.index, form, list(size or ()), list(stride or ()))
            for one, (form, size, stride) in results
        ],
        "tensors": [one.index for one in tensors],
        "numbers": [
            (-1 if one.kind == "constant" else one.index, one.constant, _is_float(one))
            for one in numbers
        ],
        "allows_deterministic": form.allows_deterministic,
        "compile": compile_backward,
    }


def _is_float(output: Output) -> bool:
    return output.kind == "float"


def _facts_of_backward(graph: CompiledGraph, floats: list[int]) -> dict[str, Any] | None:
    """None where its inputs or outputs are not what the core hands on: floats are tensors that the forward graph made."""
    outputs = graph.imported.outputs
    if graph.imported.float_inputs != floats:
        return None
    if any(one.kind != "value" and one.constant is not None for one in outputs):
        return None
    return {
        "executable": graph.executable,
        "constants": graph.imported.constants,
        "outputs": [one.index if one.kind == "value" else -1 for one in outputs],
    }
