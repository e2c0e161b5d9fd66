"""Passes that rewrite a program's graph for better networks: each is small, has a name, and can be left out."""

from __future__ import annotations

from typing import Final

from pipeline.improvements.contract_products import contract_products
from pipeline.improvements.exact_convolutions import exact_convolutions
from pipeline.improvements.fold_batch_norm import fold_batch_norm
from pipeline.improvements.fuse_attention import fuse_attention
from pipeline.improvements.fuse_gelu import fuse_gelu
from pipeline.improvements.index_by_masks import index_by_masks
from pipeline.improvements.masked_rows import masked_rows
from pipeline.improvements.merge_head_views import merge_head_views
from pipeline.improvements.merge_linears import merge_linears
from pipeline.improvements.merge_slices import merge_slices
from pipeline.improvements.patch_embedding import patch_embedding
from pipeline.improvements.push_down_slices import push_down_slices
from pipeline.improvements.rewriting import Improvement, Rewriting, improvement
from pipeline.improvements.round_before_views import round_before_views
from pipeline.improvements.select_parts import select_parts
from pipeline.improvements.simplify_masks import simplify_masks
from pipeline.improvements.split_doubles import split_doubles
from pipeline.improvements.split_products import split_products
from pipeline.improvements.transpose_weights import transpose_weights
from pipeline.improvements.update_by_masks import update_by_masks
from pipeline.improvements.update_in_place import update_in_place

PASSES: Final = (
    split_doubles,
    contract_products,
    update_in_place,
    fuse_gelu,
    fuse_attention,
    simplify_masks,
    index_by_masks,
    update_by_masks,
    masked_rows,
    push_down_slices,
    fold_batch_norm,
    patch_embedding,
    exact_convolutions,
    merge_linears,
    merge_head_views,
    merge_slices,
    transpose_weights,
    select_parts,
    split_products,
    round_before_views,
)
"""All passes, in the order in which they run: each leaves the graph in the form that the next one expects."""

RENAMED: Final = {
    "gelus": "fuse_gelu",
    "attention": "fuse_attention",
    "masks": "simplify_masks",
    "rows": "masked_rows",
    "selections": "push_down_slices",
    "scales": "fold_batch_norm",
    "patches": "patch_embedding",
    "products": "merge_linears",
    "heads": "merge_head_views",
}
"""Former names of passes, for the error message with the new ones."""

__all__ = ["PASSES", "RENAMED", "Improvement", "Rewriting", "improvement"]
