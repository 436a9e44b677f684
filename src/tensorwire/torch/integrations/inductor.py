"""Inductor, with fused products of one input made one operation of the graph: on a device they are one launch.

A graph of inductor's says which products meet the same input, and that nothing writes to it meanwhile. So nothing is
guessed here, as it is in eager torch (`products.joint`). Products in mode *exact* stay alone: inductor rounds where a
loop ends, and an operation less may end loops elsewhere, so that results would not be the dense model's.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..._ground.version import __version__

if TYPE_CHECKING:
    from torch.fx import Graph, GraphModule, Node

_PASS = "post_grad_custom_pre_pass"


def inductor(
    graph: GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: dict[str, Any] | None = None
) -> Any:
    """A backend of ``torch.compile(model, backend=inductor, mode=..., options=...)``: inductor, with products in mode
    *fused* that meet the same input made one operation, which has the same bits.

    Raises:
        ValueError: `options` has a pass of the caller's in the place of ours.
    """
    from torch._inductor import compile as compile_by_inductor
    from torch._inductor import list_mode_options
    from torch._inductor.custom_graph_pass import CustomGraphPass  # importing inductor takes seconds

    class Join(CustomGraphPass):  # type: ignore[misc]
        def __call__(self, graph: Graph) -> None:
            join_products(graph)

        def uuid(self) -> str:
            return f"{__name__} {__version__}"

    options = {**(list_mode_options(mode) if mode else {}), **(options or {})}
    if options.get(_PASS) is not None:
        raise ValueError(f"expected options without {_PASS}, which this backend sets")
    return compile_by_inductor(graph, list(inputs), {**options, _PASS: Join()})


def join_products(graph: Graph) -> None:
    """Make one operation of those fused products of a functional graph that have the same input."""
    found: dict[tuple[Any, ...], list[Node]] = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.target == torch.ops.tensorwire.linear.default:
            x, frame, dtype, (_, columns), bias, mode = node.args
            is_input = all(each is None or each.op in ("placeholder", "get_attr") for each in (frame, bias))
            if mode == "fused" and is_input:
                found.setdefault((_seen(x), dtype, columns), []).append(node)
    for (_, dtype, columns), nodes in found.items():
        if len(nodes) > 1:
            (x, *_), frames, _, shapes, biases, _ = zip(*(node.args for node in nodes), strict=True)
            rows = [shape[0] for shape in shapes]
            with graph.inserting_before(nodes[0]):
                target: Any = torch.ops.tensorwire.linears.default
                together = graph.call_function(target, (x, list(frames), dtype, rows, columns, list(biases)))
                together.meta["val"] = [node.meta["val"] for node in nodes]
                for number, node in enumerate(nodes):
                    part = graph.call_function(operator.getitem, (together, number))
                    part.meta.update(node.meta)
                    node.replace_all_uses_with(part)
            for node in nodes:
                graph.erase_node(node)


def _seen(x: Node) -> Any:
    """What an input is known by: torch makes a view of it for each product, and inductor calls a view a reshape."""
    if x.target not in (torch.ops.aten.view.default, torch.ops.aten.reshape.default):
        return x
    of, shape = x.args
    return of, tuple(shape)
