"""Attention that is written as its parts, trained: its backward pass computes weights again instead of reading them.

The graph of a training step saves the matrix of weights, that of scores and what dropout kept, each as large as queries
times keys. All of them follow from queries, keys, two numbers for each query and a seed. Where the graph has a softmax
whose weights multiply values, perhaps behind dropout, and the whole gradient of that,

- the backward pass makes scores again and weights of them, exp(scores - largest) / sum, with these two saved,
- the mean of the weights' gradients, sum(of_weights * weights), becomes sum(of_means * means), which is the same number
  (T. Dao et al., "FlashAttention", 2022), and
- the gradients of queries, keys and values become one op.

The core makes one kernel of that, with no matrix in memory (docs/decisions/0026).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from mlcc.importer.ops import attention_gradients
from mlcc.rewrite import attention_widths
from mlcc.torch_private import aot_partition, symints, tracing

_aten = torch.ops.aten

_ALIASES = (_aten.detach.default, _aten.alias.default)
_CASTS = (_aten._to_copy.default, torch.ops.prims.convert_element_type.default)
# What changes neither elements nor their order.
_SAME = (
    *_ALIASES,
    *(_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default),
    *(_aten.expand.default, _aten.unsqueeze.default, _aten.squeeze.dim, _aten.clone.default),
)
_PRODUCTS = (_aten.bmm.default, _aten.mm.default)

# Queries times keys of a head from which on a step takes no longer than one that saves the matrices (decision 0026); of
# 16-bit floats, which the kernel computes in f32 and a library multiplies faster, the second.
_LEAST_SCORES = 1 << 18
_LEAST_SHORT_SCORES = 1 << 23


def compute_again(partition: Callable[..., Any], pointwise: Container[str]) -> Callable[..., Any]:
    """A partition function that takes care of attention first. `pointwise`: names of aten's packets."""

    def partition_without_weights(
        joint: GraphModule, *args: Any, num_fwd_outputs: int, **kwargs: Any
    ) -> Any:
        if _rewrite(joint.graph, num_fwd_outputs, pointwise):
            joint.recompile()
        return partition(joint, *args, num_fwd_outputs=num_fwd_outputs, **kwargs)

    return partition_without_weights


def _rewrite(graph: Graph, num_results: int, pointwise: Container[str]) -> bool:
    """Whether there was such attention."""
    has_changed = False
    for quotient in graph.find_nodes(op="call_function", target=_aten.div.Tensor):
        scores = _softmax_operand(quotient)
        if scores is None or not _are_many(scores, _LEAST_SCORES):
            continue
        try:
            # Anew for each: the graph changes.
            found = _Search(graph, num_results, pointwise).attention(scores, quotient)
        except _NoMatchError:
            continue
        if _make_worth_it(found):
            _Builder(graph, found).build()
            has_changed = True
    return has_changed


def _are_many(scores: Node, least: int) -> bool:
    """Whether a head has at least so many scores; adds no guard."""
    sizes = scores.meta["val"].shape[-2:]
    if len(sizes) < 2 or not all(map(symints.follows_from_inputs, sizes)):
        return False
    return math.prod(map(symints.hint_of, sizes)) >= least


def _softmax_operand(quotient: Any) -> Node | None:
    """x of exp(x - max(x)) / sum(..), along the last dimension, if the node is such a quotient."""
    if not _is_call(quotient, _aten.div.Tensor):
        return None
    weights, sums = quotient.args
    if not _is_call(weights, _aten.exp.default) or not _is_row_of(
        sums, _aten.sum.dim_IntList, weights
    ):
        return None
    difference = weights.args[0]
    if not _is_call(difference, _aten.sub.Tensor) or len(difference.args) != 2:
        return None
    scores, largest = difference.args
    return scores if _is_row_of(largest, _aten.amax.default, scores) else None


class _NoMatchError(Exception):
    """This is no attention with its gradient."""


def _require(condition: Any) -> None:
    if not condition:
        raise _NoMatchError


def _only(candidates: Iterable[Any]) -> Any:
    found = list(candidates)
    _require(len(found) == 1)
    return found[0]


@dataclass(frozen=True)
class _Turned:
    """Scores or what is as many, with queries and keys as they were or the other way round."""

    node: Node
    is_turned: bool

    def before_turning(self) -> _Turned:
        """What the node is a transposed view of, if it is one."""
        operand = _transposed(self.node)
        return _Turned(operand, not self.is_turned).before_turning() if operand else self


@dataclass(frozen=True)
class _RowGradient:
    """A product of the gradients of scores with rows, of keys or of queries."""

    product: Node
    rows: Node  # the other operand
    is_transposed: bool  # the result and the other operand are [.., width, length]


@dataclass(frozen=True)
class _Attention:
    scores: Node
    path: list[Node]  # from the product of queries and keys, the first of them, to the scores
    guard: Node | None  # the choice of 0 where a row has no keys
    chain: list[Node]  # from the quotient of the softmax to the left operand of that with values
    means: Node  # that product
    of_values: Node  # a product of the left operand, transposed, and gradients of means
    worth: Node  # sums of gradients of weights times weights
    of_scores: _Turned  # gradients as products read them
    of_queries: _RowGradient
    of_keys: _RowGradient


class _Search:
    """Finds what belongs to a softmax; _NoMatchError where that is not all of attention, or more than it."""

    def __init__(self, graph: Graph, num_results: int, pointwise: Container[str]) -> None:
        (output,) = graph.find_nodes(op="output")
        results = [one for one in output.args[0] if isinstance(one, Node)]
        self._results = set(results)
        self._forward = _ancestors(set(output.args[0][:num_results]) & self._results)
        self._gradients = aot_partition.gradients_in(graph)
        self._pointwise = pointwise

    def attention(self, scores: Node, quotient: Node) -> _Attention:
        """The attention of these scores."""
        guard, softmax = self._softmax(scores, quotient)
        chain, means = self._weights(softmax[-1])
        of_values = self._gradient_of_values(means)
        worth, of_softmax, of_weights = self._gradient_of_softmax(softmax[-1])
        product = self._product_above(of_weights, chain)
        _require(product.args[0] is of_values.args[1])
        _require(_transposed(product.args[1]) is means.args[1])
        of_scores, of_queries, of_keys = self._gradients_of_rows(of_softmax)
        path = self._path(scores, quotient, guard)
        _check_forms(scores, path, means, of_values, product, of_queries, of_keys)
        chain = [*softmax, *chain]
        products = of_values, worth, of_scores, of_queries, of_keys
        return _Attention(scores, path, guard, chain, means, *products)

    def _readers(self, node: Node, in_forward: bool) -> list[tuple[Node, Node]]:
        """Readers of a value in the forward or in the backward pass, and the names that they have for it."""
        return [
            (user, alias)
            for alias in _aliases(node)
            for user in alias.users
            if not _is_call(user, *_ALIASES, _aten.sym_size.int)
            and (user in self._forward) == in_forward
        ]

    def _softmax(self, scores: Node, quotient: Node) -> tuple[Node | None, list[Node]]:
        nodes, guard = [quotient], None
        while not self._readers(nodes[-1], in_forward=False):
            node = _only(
                user
                for user, _ in self._readers(nodes[-1], in_forward=True)
                if not _is_call(user, _aten.full_like.default)
            )
            if guard is None and _is_guard(node, scores, nodes[-1]):
                guard = node
            else:
                _require(_is_call(node, *_CASTS))
            nodes.append(node)
        return guard, nodes

    def _weights(self, node: Node) -> tuple[list[Node], Node]:
        """What happens to weights before they multiply values, and that product."""
        chain: list[Node] = []
        while True:
            reader, alias = _only(self._readers(node, in_forward=True))
            _require(reader.args[0] is alias)
            if _is_call(reader, *_PRODUCTS):
                return chain, reader
            chain.append(reader)
            if _is_call(reader, _aten.native_dropout.default):
                _require(_is_share(reader.args[1]) and reader.args[2] is True)
                node = _only(user for user in reader.users if user.args[1] == 0)
            else:
                _require(_is_call(reader, *_SAME, *_CASTS))
                node = reader

    def _gradient_of_values(self, means: Node) -> Node:
        """The only other reader of weights as they multiply values."""
        readers = self._readers(means.args[0], in_forward=False)
        transposed = _only(user for user, _ in readers if _transposed(user) is not None)
        product = _only(transposed.users)
        _require(_is_call(product, *_PRODUCTS) and product.args[0] is transposed)
        return product

    def _gradient_of_softmax(self, weights: Node) -> tuple[Node, Node, Node]:
        """Of of_weights * weights - worth * weights: worth, the whole and of_weights."""
        readers = [
            (user, alias)
            for user, alias in self._readers(weights, in_forward=False)
            if _transposed(user) is None  # for the gradient of values
        ]
        users, names = {user for user, _ in readers}, {alias for _, alias in readers}
        if len(users) == 1 and _is_call(min(users), *_CASTS):
            names = users
            users = set(min(users).users)
        _require(len(users) == 2 and all(_is_call(user, _aten.mul.Tensor) for user in users))
        sums = _only(
            one
            for user in users
            for one in user.users
            if _is_row_of(one, _aten.sum.dim_IntList, user)
        )
        product, other = sums.args[0], _only(sums.users)
        difference = _only(other.users)
        _require({product, other} == users and difference.args == (product, other))
        _require(
            _is_call(difference, _aten.sub.Tensor) and set(product.users) == {sums, difference}
        )
        return sums, difference, _only(set(product.args) - names)

    def _product_above(self, node: Node, chain: list[Node]) -> Node:
        """That of gradients of means and values, which reaches weights through what dropouts keep and nothing else."""
        dropouts = {one for one in chain if _is_call(one, _aten.native_dropout.default)}
        scale = math.prod(1 - one.args[1] for one in dropouts)
        masks = []
        while not _is_call(node, *_PRODUCTS):
            _require(len(node.users) == 1 and node not in self._results)
            if _is_call(node, _aten.mul.Tensor, _aten.mul.Scalar):
                factor = _only(one for one in node.args if one not in self._gradients)
                node = _only(one for one in node.args if one is not factor)
                mask, number = _kept(factor)
                masks += [mask] if mask is not None else []
                scale *= number
            else:
                _require(_is_call(node, *_SAME, *_CASTS))
                node = node.args[0]
        _require(len(masks) == len(dropouts) and set(masks) == dropouts)
        _require(math.isclose(scale, 1, rel_tol=1e-6))
        return node

    def _gradients_of_rows(self, node: Node) -> tuple[_Turned, _RowGradient, _RowGradient]:
        """The gradients of scores at their end, and the products that read them: for queries and for keys."""
        found: dict[bool, _RowGradient] = {}
        ends = set()
        waiting = [_Turned(node, False)]
        for one in waiting:  # which grows
            _require(one.node not in self._results)
            for user in one.node.users:
                if _is_call(user, *_PRODUCTS):
                    is_left = user.args[0] is one.node
                    # Over queries add up turned gradients on the left, and others on the right.
                    is_of_keys = one.is_turned == is_left
                    _require(is_of_keys not in found)
                    found[is_of_keys] = _RowGradient(user, user.args[is_left], not is_left)
                    ends.add(one.before_turning())
                    continue
                is_turn = _transposed(user) is one.node
                _require(is_turn or self._keeps_places(user, node))
                following = _Turned(user, one.is_turned != is_turn)
                waiting += [following] if following not in waiting else []
        _require(len(found) == 2)
        return _only(ends), found[False], found[True]

    def _path(self, scores: Node, quotient: Node, guard: Node | None) -> list[Node]:
        """Nodes from the product of queries and keys to the scores, which nothing else in the forward pass reads."""
        path: list[Node] = []
        leads: dict[Node, bool] = {}

        def visit(node: Node) -> bool:
            if node not in leads:
                is_product = _is_call(node, *_PRODUCTS)
                passes = self._keeps_places(node, scores) or _transposed(node) is not None
                below = [visit(one) for one in node.all_input_nodes] if passes else []
                leads[node] = is_product or any(below)
                path.extend([node] if leads[node] else [])
            return leads[node]

        _require(visit(scores))
        difference = quotient.args[0].args[0]
        parts = {*path, difference, difference.args[1], *([guard.args[0].args[0]] if guard else [])}
        for node in path:
            readers = {user for user, _ in self._readers(node, in_forward=True)}
            _require(
                readers <= parts and "recompute" not in node.meta and node not in self._results
            )
        _require(sum(_is_call(node, *_PRODUCTS) for node in path) == 1)
        return path

    def _keeps_places(self, node: Node, scores: Node) -> bool:
        """Whether a node computes its elements one by one, as many as there are scores."""
        value = node.meta.get("val")
        name = node.target._schema.name if hasattr(node.target, "_schema") else ""
        is_pointwise = name.removeprefix("aten::") in self._pointwise or _is_call(
            node, *_SAME, *_CASTS
        )
        return (
            is_pointwise
            and isinstance(value, torch.Tensor)
            and symints.is_known(value.numel() == scores.meta["val"].numel())
        )


def _make_worth_it(attention: _Attention) -> bool:
    """Whether there is fast code for these sizes. Widths of heads that are symbols become numbers, by guards."""
    scores, means = attention.scores.meta["val"], attention.means.meta["val"]
    products = [attention.path[0], attention.means, attention.of_values]
    is_double = {one.args[0].meta["val"].dtype == torch.float64 for one in products}
    if scores.device.type != "cpu" or is_double != {scores.dtype == torch.float64}:
        return False
    if means.dtype.itemsize < 4 and not _are_many(attention.scores, _LEAST_SHORT_SCORES):
        return False
    widths = [attention.path[0].args[0].meta["val"].shape[-1], means.shape[-1]]
    return attention_widths.become_numbers(attention.scores.graph, scores.shape[-1], widths)


def _check_forms(
    scores: Node,
    path: list[Node],
    means: Node,
    of_values: Node,
    of_weights: Node,
    of_queries: _RowGradient,
    of_keys: _RowGradient,
) -> None:
    """All products are of matrices of queries or keys, as many of them as there are matrices of scores."""
    *outer, queries, keys = scores.meta["val"].shape
    count = math.prod(outer)

    def check(product: Node, rows: Any, columns: Any = None, is_transposed: bool = False) -> None:
        *others, height, width = product.meta["val"].shape
        if is_transposed:
            height, width = width, height
        wanted = [math.prod(others) == count, height == rows]
        wanted += [width == columns] if columns is not None else []
        _require(all(map(symints.is_known, wanted)))

    product = path[0]
    height = product.meta["val"].shape[-2]
    check(product, queries, keys, not symints.is_known(height == queries))
    check(means, queries)
    check(of_values, keys)
    check(of_weights, queries, keys)
    check(of_queries.product, queries, None, of_queries.is_transposed)
    check(of_keys.product, keys, None, of_keys.is_transposed)


class _Builder:
    """Makes the backward pass compute the weights of an attention again."""

    def __init__(self, graph: Graph, attention: _Attention) -> None:
        self._graph = graph
        self._found = attention
        self._dtype = attention.scores.meta["val"].dtype

    def build(self) -> None:
        """Rewrites the graph."""
        found = self._found
        weights, sums = found.chain[0].args
        difference = weights.args[0]
        saved = [difference.args[1], sums]
        again = [*found.path, *_constants_of(found.path), difference, weights]
        for node in found.chain:
            if _is_call(node, _aten.native_dropout.default):
                again += self._drawn(node)
            else:
                again.append(node)
            if found.guard is not None and node is found.guard:
                is_empty, zeros, _ = found.guard.args
                saved.append(is_empty)
                again.append(zeros)
        for node in again:
            aot_partition.recompute(node)
        for node in saved:
            aot_partition.save(node)
        with self._graph.inserting_before(found.worth):
            found.worth.replace_all_uses_with(self._worth())
        self._replace_gradients()

    def _drawn(self, dropout: Node) -> list[Node]:
        """Nodes in the place of dropout, of which the backward pass computes all but the seed again."""
        weights, share, _ = dropout.args
        kwargs = {"dtype": torch.int64, "device": torch.device("cpu")}
        with self._graph.inserting_before(dropout):
            seed = self._call(_aten.randint.low, 0, (1 << 63) - 1, [], **kwargs)
            mask = self._call(
                attention_gradients.dropout_mask, seed, self._sizes(weights), 1 - share
            )
            kept = self._call(_aten.mul.Tensor, self._cast(weights), self._cast(mask))
            scaled = self._call(_aten.mul.Tensor, kept, 1 / (1 - share))
            dropped = self._cast(scaled, weights.meta["val"].dtype)
        aot_partition.save(seed)
        for result in list(dropout.users):
            result.replace_all_uses_with((dropped, mask)[result.args[1]])
            self._graph.erase_node(result)
        self._graph.erase_node(dropout)
        return [mask, kept, scaled, dropped]

    def _worth(self) -> Node:
        means, of_means = self._found.means, self._found.of_values.args[1]
        products = self._call(_aten.mul.Tensor, self._cast(of_means), self._cast(means))
        sums = self._call(_aten.sum.dim_IntList, products, [-1], True)
        sums = self._reshaped(sums, [*self._sizes(self._found.scores)[:-1], 1])
        return self._cast(sums, self._found.worth.meta["val"].dtype)

    def _replace_gradients(self) -> None:
        found = self._found
        nodes = list(self._graph.nodes)
        products = {
            found.of_queries.product: found.of_queries.is_transposed,
            found.of_keys.product: found.of_keys.is_transposed,
            found.of_values: False,
        }
        places = sorted(nodes.index(product) for product in products)
        following = nodes[places[-1]].next
        with self._graph.inserting_before(following):
            everything = self._gradients()
            results = [
                self._result(everything, place, product, is_transposed)
                for place, (product, is_transposed) in enumerate(products.items())
            ]
        for product, result in zip(products, results, strict=True):
            product.replace_all_uses_with(result)
        # What is computed from one of them stood in front of another one's operands, maybe.
        late, last = set(results), following.prev
        for node in nodes[places[0] : places[-1]]:
            if not late.isdisjoint(node.all_input_nodes):
                late.add(node)
                last.append(node)
                last = node
        for product in products:
            self._graph.erase_node(product)

    def _gradients(self) -> Node:
        found = self._found
        sizes = self._sizes(found.scores)
        of_scores = self._cast(found.of_scores.node)
        if found.of_scores.is_turned:
            of_scores = self._call(_aten.transpose.int, of_scores, -2, -1)

        def matrices(node: Node, is_transposed: bool = False) -> Node:
            node = self._cast(node)
            if is_transposed:
                node = self._call(_aten.transpose.int, node, -2, -1)
            return self._reshaped(node, [*sizes[:-2], *self._sizes(node)[-2:]])

        return self._call(
            attention_gradients.attend_gradients,
            self._reshaped(self._cast(found.means.args[0]), sizes),
            self._reshaped(of_scores, sizes),
            matrices(found.of_values.args[1]),
            matrices(found.of_keys.rows, found.of_keys.is_transposed),
            matrices(found.of_queries.rows, found.of_queries.is_transposed),
        )

    def _result(self, everything: Node, place: int, product: Node, is_transposed: bool) -> Node:
        """In the form of the product that it takes the place of."""
        left, right = product.args
        sizes = [*self._sizes(left)[:-1], self._sizes(right)[-1]]
        if is_transposed:
            sizes[-2:] = sizes[-1], sizes[-2]
        result = self._reshaped(self._call(operator.getitem, everything, place), sizes)
        if is_transposed:
            result = self._call(_aten.transpose.int, result, -2, -1)
            kwargs = {"memory_format": torch.contiguous_format}
            result = self._call(_aten.clone.default, result, **kwargs)
        return self._cast(result, product.meta["val"].dtype)

    # -- nodes

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        return tracing.add_call(self._graph, target, args, kwargs)

    def _cast(self, node: Node, dtype: torch.dtype | None = None) -> Node:
        dtype = dtype or self._dtype
        is_same = node.meta["val"].dtype == dtype
        return node if is_same else self._call(_aten._to_copy.default, node, dtype=dtype)

    def _reshaped(self, node: Node, sizes: list[Any]) -> Node:
        return self._call(_aten.reshape.default, node, sizes)

    def _sizes(self, node: Node) -> list[Any]:
        return [
            size if isinstance(size, int) else self._call(_aten.sym_size.int, node, dim)
            for dim, size in enumerate(node.meta["val"].shape)
        ]


def _is_call(value: Any, *targets: Any) -> bool:
    return isinstance(value, Node) and value.target in targets


def _is_row_of(node: Any, reduction: Any, operand: Node) -> bool:
    """Whether it is a reduction of `operand` along the last dimension, which stays."""
    if not _is_call(node, reduction) or node.kwargs or len(node.args) != 3:
        return False
    value, dims, keepdim = node.args
    last = operand.meta["val"].dim() - 1
    return value is operand and keepdim is True and list(dims) in ([-1], [last])


def _is_guard(node: Node, scores: Node, weights: Node) -> bool:
    """Whether it is 0 where all scores of a row are -inf, and weights elsewhere."""
    if not _is_call(node, _aten.where.self) or node.args[2] is not weights:
        return False
    are_empty, zeros, _ = node.args
    if not _is_call(are_empty, _aten.all.dim) or not _is_call(zeros, _aten.full_like.default):
        return False
    is_hidden = are_empty.args[0]
    return (
        zeros.args[1] == 0
        and list(are_empty.args[1:]) in ([-1, True], [scores.meta["val"].dim() - 1, True])
        and _is_call(is_hidden, _aten.eq.Scalar)
        and is_hidden.args == (scores, -math.inf)
    )


def _kept(factor: Any) -> tuple[Node | None, float]:
    """The dropout whose mask a factor is, if it is one, and the number that it is multiplied with."""
    number = 1.0
    while isinstance(factor, Node):
        if _is_call(factor, operator.getitem) and factor.args[1] == 1:
            return factor.args[0], number
        if _is_call(factor, _aten.mul.Tensor, _aten.mul.Scalar):
            value, by = factor.args
            _require(isinstance(by, int | float))
            factor, number = value, number * by
        else:
            _require(_is_call(factor, *_SAME, *_CASTS))
            factor = factor.args[0]
    _require(isinstance(factor, int | float))
    return None, factor * number


def _is_share(share: Any) -> bool:
    return isinstance(share, float) and 0 < share < 1


def _transposed(node: Any) -> Node | None:
    """What the node is, with its last two dimensions the other way round."""
    if not isinstance(node, Node) or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    rank = node.meta["val"].dim()
    if rank < 2:
        return None
    if _is_call(node, _aten.t.default):
        return node.args[0]
    if _is_call(node, _aten.transpose.int):
        return (
            node.args[0] if {dim % rank for dim in node.args[1:]} == {rank - 1, rank - 2} else None
        )
    if _is_call(node, _aten.permute.default):
        wanted = [*range(rank - 2), rank - 1, rank - 2]
        return node.args[0] if [dim % rank for dim in node.args[1]] == wanted else None
    return None


def _constants_of(nodes: list[Node]) -> set[Node]:
    """What they read that follows from sizes, as masks of places do: the core knows these, but not saved ones."""
    found: set[Node] = set()
    for operand in {one for node in nodes for one in node.all_input_nodes} - set(nodes):
        above = _tensors_above(operand)
        if all(map(_is_pure, above)):
            found |= above
    return found


def _is_pure(node: Node) -> bool:
    """Whether it is an op of torch's own that gives the same each time."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.is_mutable or not schema.name.startswith(("aten::", "prims::")):
        return False
    return torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())


def _aliases(node: Node) -> list[Node]:
    found = [node]
    for one in found:  # which grows
        found += [user for user in one.users if _is_call(user, *_ALIASES)]
    return found


def _ancestors(nodes: Iterable[Node]) -> set[Node]:
    """The nodes and all that they are computed from."""
    return _reached(nodes, lambda _: True)


def _tensors_above(node: Node) -> set[Node]:
    """The node and what it is computed from, but for numbers."""
    return _reached(
        [node], lambda one: not isinstance(one.meta.get("val"), torch.types.py_sym_types)
    )


def _reached(nodes: Iterable[Node], counts: Callable[[Node], bool]) -> set[Node]:
    """The nodes that count, and all that they are computed from by way of such."""
    found = set(filter(counts, nodes))
    waiting = list(found)
    while waiting:
        new = set(filter(counts, waiting.pop().all_input_nodes)) - found
        found |= new
        waiting += new
    return found
