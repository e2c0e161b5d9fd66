"""Print the inputs and outputs of a program or segment, with sizes named as in the model (``x.shape[0]``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pipeline.aten.types import Argument


def port_text(port: Argument, size_text: Callable[[object], str] = str, name: str = "") -> str:
    """Return a `Port` as ``x: float32[1..4..8, 3]``, or ``y: float32[x.shape[0]=1..4..8]`` if ``x`` has that size, too.
    ``size_text``: prints a size, such as `ShapeEnvironment.words`; ``name``: printed in place of the port's name."""
    name = name or port.name
    if port.kind == "constant":
        return f"{name} = {port.value!r}"
    if port.kind != "tensor":
        return f"{name}: {port.kind.removeprefix('sym')} = {size_text(port.value)}"
    dims = []
    for at, (size, ends) in enumerate(zip(port.shape, port.ranges, strict=True)):
        said = size_text(size)
        own = said == f"{name}.shape[{at}]"
        dims.append(said if isinstance(size, int) else str(ends) if own else f"{said}={ends}")
    return f"{name}: {str(port.dtype).removeprefix('torch.')}[{', '.join(dims)}]"


def output_lines(
    outputs: Iterable[Argument], ports: Iterable[Argument], size_text: Callable[[object], str] = str
) -> Iterator[str]:
    """Yield a line for each output that a caller receives: ``logits: float32[2, 10]``. ``ports`` has the types."""
    known = {port.name: port for port in ports}
    for output in (output for output in outputs if output.kind == "user"):
        name, port = output.name or str(output.value), None if output.constant else known.get(output.value)
        if output.constant:
            yield f"{name} = {output.value!r}"
        else:
            yield port_text(port, size_text, name) if port else f"{name}: {output.target or output.value}"
