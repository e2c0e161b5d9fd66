"""The schemas that stand for libraries that are not installed are those of the libraries, where they are."""

import pytest
import torch

from tests.quantized.schemas import SCHEMAS, define_missing, is_defined


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_the_librarys(name: str) -> None:
    if name in define_missing():
        pytest.skip("its library is not installed")
    namespace, _, operator = name.partition("::")
    real = getattr(getattr(torch.ops, namespace), operator).default._schema
    assert str(real) == name + SCHEMAS[name][0]


def test_every_operator_is_defined_afterwards() -> None:
    define_missing()
    assert all(map(is_defined, SCHEMAS))
    assert define_missing() == ()
