"""A user's mistakes, each with the code of the error that mypy has for it."""

import torch

import pipeline

model = torch.nn.Linear(3, 3)
args = (torch.zeros(2, 3),)
compile = pipeline.default()
compiled = compile(model, args)

compiled.engine  # expect: attr-defined
compile(model, inputs=args)  # expect: call-overload
compile("model.pt2x", output_names=3)  # expect: call-overload
compile.until("build")(model, args).coverage  # expect: attr-defined
compile | pipeline.autocast(torch.float16)  # expect: operator
compile.until("convert") | pipeline.verify()  # expect: operator
compiled.module(executor="gpu")  # expect: arg-type
size: int = compiled.engines  # expect: assignment
pipeline.default(registry={})  # expect: arg-type
