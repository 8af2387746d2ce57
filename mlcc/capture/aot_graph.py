"""Compiled graphs as AOTAutograd calls and stores them, and those that run eagerly instead."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule

from mlcc.capture.compiled_graph import CompiledGraph, UnstorableGraphError
from mlcc.capture.eager_run import EagerRun
from mlcc.torch_private import aot, aot_metadata


class AotGraph(CompiledGraph, aot.OutputCode):
    """A compiled graph in torch's cache."""

    def prepare_for_serialization(self) -> None:
        """Drop what cannot be stored; torch calls this on a copy."""
        try:
            self.drop_code()
        except UnstorableGraphError as reason:
            raise aot.cache_bypass(str(reason)) from None

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Called after it is loaded, and after it is compiled."""
        del example_inputs, constants, graph_kwargs
        self.load()

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There are no Triton kernels here."""
        del triton_bundle


class EagerGraph(aot.OutputCode):
    """A graph that runs eagerly, and is not stored."""

    is_eager = True

    def __init__(self, gm: GraphModule) -> None:
        super().__init__()
        self.num_inputs, self.written = aot_metadata.written_inputs()
        self.returns_views = bool(aot_metadata.outputs_made_again())
        self.gm = gm
        self._run = EagerRun(gm)
        self._boxed_call = True
        self._time_taken_ns = 0

    def __call__(self, inputs: list[Any]) -> Any:
        """Run on tensors and ints; the list is emptied."""
        return self._run(inputs)

    def prepare_for_serialization(self) -> None:
        """Nothing of it may enter a cache: a later version may compile it."""
        raise aot.cache_bypass("the graph runs eagerly")

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Never stored, so never loaded."""

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There are no Triton kernels here."""
