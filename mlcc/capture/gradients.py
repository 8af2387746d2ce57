"""What the core has to know of a trace to have its calls differentiated without AOTAutograd's autograd function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlcc.capture.compiled_graph import CompiledGraph
from mlcc.importer.context import Output
from mlcc.torch_private import aot_metadata

if TYPE_CHECKING:  # what loads a trace does without what compiles
    from mlcc.capture.session import Session


@dataclass(frozen=True)
class Gradient:
    """The gradient of a forward graph."""

    form: aot_metadata.GradientForm
    # The backward graph, where the core can run it, and else a boxed function.
    backward: Callable[[], tuple[CompiledGraph | None, Callable[[list[Any]], Any] | None]]

    def facts(self, graph: CompiledGraph) -> dict[str, Any]:
        """For the core's Gradient."""
        tensors, numbers, results = self._outputs(graph)
        floats = self._floats(graph)

        def compile_backward() -> dict[str, Any]:
            backward, function = self.backward()
            if backward is None or not _is_native(backward, floats):
                return {"function": function}
            if backward.runs_eagerly:
                return {"function": backward}
            return {
                "executable": backward.executable,
                "constants": backward.imported.constants,
                "outputs": [
                    one.index if one.kind == "value" else -1 for one in backward.imported.outputs
                ],
            }

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
            "allows_deterministic": self.form.allows_deterministic,
            "compile": compile_backward,
        }

    def native_backward(self, graph: CompiledGraph) -> CompiledGraph | None:
        """The backward graph, if the core can run it."""
        backward, _ = self.backward()
        is_native = backward is not None and _is_native(backward, self._floats(graph))
        return backward if is_native else None

    def is_of_values(self, graph: CompiledGraph) -> bool:
        """Whether what is saved and what has gradients are tensors of the executable's."""
        tensors, _, results = self._outputs(graph)
        return all(one.kind == "value" for one in (*tensors, *(one for one, _ in results)))

    def _outputs(self, graph: CompiledGraph) -> tuple[list[Output], list[Output], list[Any]]:
        """Saved tensors, saved numbers, and the results with the forms of their gradients."""
        outputs = graph.imported.outputs
        first_number = len(outputs) - self.form.num_numbers
        return (
            outputs[self.form.num_results : first_number],
            outputs[first_number:],
            [(outputs[place], gradient) for place, gradient in self.form.gradients],
        )

    def _floats(self, graph: CompiledGraph) -> list[int]:
        _, numbers, _ = self._outputs(graph)
        return [place for place, one in enumerate(numbers) if _is_float(one)]


def gradient_of(session: Session, metadata: Any) -> Gradient | None:
    """The gradient of what a session compiled; None where torch's autograd function is needed."""
    graph, form = session.forward_graph(), aot_metadata.gradient_form(metadata)
    if graph is None or form is None:
        return None
    gradient = Gradient(form, lambda: session.compile_backward())
    return gradient if gradient.is_of_values(graph) else None


def _is_float(output: Output) -> bool:
    return output.kind == "float"


def _is_native(backward: CompiledGraph, floats: list[int]) -> bool:
    """Whether its inputs and outputs are what the core hands on: floats are tensors that the forward graph made."""
    return backward.imported.float_inputs == floats and not any(
        one.kind != "value" and one.constant is not None for one in backward.imported.outputs
    )
