"""torch.compile with mlcc where the test looks at the graphs that were compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from mlcc import config
from mlcc.capture.compiled_graph import CompiledGraph
from mlcc.capture.session import Session


class Sessions:
    """`function` compiled, and its graphs so far: forward, backward, inference, in order of compilation."""

    def __init__(self, function: Callable[..., Any], dynamic: bool | None = False) -> None:
        torch._dynamo.reset()
        self._sessions: list[Session] = []
        self._function = torch.compile(function, backend=self._compile, dynamic=dynamic)

    def _compile(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self._sessions.append(Session(None, config.resolve({"torch_caches": False})))
        return self._sessions[-1].compile(gm, example_inputs)

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    @property
    def graphs(self) -> list[Any]:
        return [graph for session in self._sessions for graph in session.graphs]

    def check_all_compiled(self) -> None:
        """No graph ran eagerly as a whole."""
        assert self.graphs
        assert all(isinstance(graph, CompiledGraph) for graph in self.graphs)
