"""Put a stage of your own into the pipeline: a function from record to record, checked where it joins."""

import torch
from torch import nn

import pipeline


@pipeline.stage
def count_operators(program: pipeline.Program) -> pipeline.Program:
    """Print how many operators reach the validator; the program stays as it is."""
    print(sum(node.op == "call_function" for node in program.graph.nodes), "operators")
    return program


def main() -> None:
    """Compile with the stage, and stop a compilation after another one."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)).eval().requires_grad_(False), torch.ones(2, 8)
    stages = pipeline.default().insert(count_operators, after="improve")
    compiled = stages(model, args=(x,))
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-2, atol=1e-2)
    print(stages.until("partition")(model, args=(x,)))


if __name__ == "__main__":
    main()
