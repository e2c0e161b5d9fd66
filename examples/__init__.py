"""Models and programs that the README, the demo, the tests and the benchmarks share."""

import logging

for _library in ("torchao", "torch.utils._pytree"):  # transformers loads the first where it is, which warns of both
    logging.getLogger(_library).setLevel(logging.ERROR)
