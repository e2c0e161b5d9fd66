"""A program that was saved and loaded is the program: it prints, behaves and is refitted as that, and is saved as the
same bytes."""

from __future__ import annotations

import copy
import errno
import gc
import re
import resource
import warnings
import zipfile
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_structure

import pipeline
from pipeline import Compiled
from pipeline.artifact.manifest import Manifest, SavedEngine, SavedVerdict
from pipeline.network.engine import Engine
from pipeline.program import Partitioned, Program, Verdict, is_operator
from tests.artifact.programs import Case, cases

pytestmark = pytest.mark.filterwarnings("ignore::pipeline.ArtifactWarning")
CASES = cases()


def compiled(case: Case) -> Compiled:
    """The case, compiled."""
    made: Any = pipeline.default(**case.settings)(case.model, case.args, dynamic_shapes=case.dynamic_shapes)
    assert isinstance(made, Compiled)
    return made


def kept(program: Compiled, folder: Path, **options: Any) -> Compiled:
    """The program, saved and loaded."""
    program.save(folder / "program.trtp", **options)
    return pipeline.load(folder / "program.trtp")


def assert_equal(left: Any, right: Any) -> None:
    """Equal structures, and leaves of equal types, dtypes and values."""
    assert tree_structure(left) == tree_structure(right)
    for a, b in zip(tree_leaves(left), tree_leaves(right), strict=True):
        assert type(a) is type(b)
        assert torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("name", CASES)
def test_a_loaded_program_is_the_program(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    program = compiled(case)
    loaded = kept(program, tmp_path)
    assert repr(loaded) == repr(program)
    assert loaded.report() == program.report()
    for part in ("program", "partitioned", "coverage", "refit_map", "settings"):
        assert str(getattr(loaded, part)) == str(getattr(program, part)), part
    assert list(map(str, loaded.networks)) == list(map(str, program.networks))
    assert list(map(bytes, loaded.engines)) == list(map(bytes, program.engines))
    assert loaded.program.digest == program.program.digest
    assert list(map(is_operator, loaded.program.graph.nodes)) == list(map(is_operator, program.program.graph.nodes))
    ours, theirs = loaded.module(), program.module()
    for _ in range(2):  # what a call writes, the next reads
        left, right = copy.deepcopy(case.args), copy.deepcopy(case.args)
        assert_equal((ours(*left), left), (theirs(*right), right))


@pytest.mark.parametrize("name", ["whole", "fallback", "branches", "relation"])
def test_equal_programs_are_equal_files(name: str, tmp_path: Path) -> None:
    program = compiled(CASES[name])
    kept(program, tmp_path).save(tmp_path / "again.trtp")
    assert (tmp_path / "again.trtp").read_bytes() == (tmp_path / "program.trtp").read_bytes()


def test_outputs_that_are_inputs_or_parameters_are_those_tensors(tmp_path: Path) -> None:
    case = CASES["aliases"]
    module = kept(compiled(case), tmp_path).module()
    x = case.args[0]
    first, weight, *_ = module(x)
    assert first is x
    assert module(x)[1] is weight


def test_a_loaded_program_is_refitted(tmp_path: Path) -> None:
    case, other = CASES["fallback"], copy.deepcopy(CASES["fallback"].model)
    nn.init.normal_(other.linear.weight)
    program = compiled(case)
    expected = pipeline.refit_module_weights(program, other)
    found = pipeline.refit_module_weights(kept(program, tmp_path), other)
    assert_equal(found(*case.args), expected(*case.args))
    assert list(map(bytes, found.engines)) == list(map(bytes, expected.engines))
    assert_equal(kept(found, tmp_path)(*case.args), expected(*case.args))


def test_the_file_is_a_zip_of_aligned_entries_that_others_read(tmp_path: Path) -> None:
    kept(compiled(CASES["fallback"]), tmp_path)
    with zipfile.ZipFile(tmp_path / "program.trtp") as file:
        assert file.testzip() is None
        assert file.namelist()[-1] == "manifest.json"
        for entry in file.infolist():
            is_text = entry.filename.endswith(".json")
            assert entry.compress_type == (zipfile.ZIP_DEFLATED if is_text else zipfile.ZIP_STORED)
            name, extra = (int.from_bytes(file.fp.read(2), "little") for _ in _at(file, entry.header_offset + 26))
            assert (entry.header_offset + 30 + name + extra) % 4096 == 0


def _at(file: Any, offset: int) -> range:
    file.fp.seek(offset)
    return range(2)


def test_weights_are_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    case = CASES["fallback"]
    program = compiled(case)
    loaded = kept(program, tmp_path, weights=tmp_path / "weights.safetensors")
    found = safetensors.load_file(tmp_path / "weights.safetensors")
    assert torch.equal(found["linear.weight"], case.model.linear.weight)
    assert_equal(loaded(*case.args), program(*case.args))


def test_weights_can_be_left_out(tmp_path: Path) -> None:
    case = CASES["fallback"]
    program = compiled(case)
    loaded = kept(program, tmp_path, weights="none")
    assert loaded.report() == program.report()
    with pytest.raises(pipeline.ExecutionError, match=r"has no value: .*program.trtp was saved without weights"):
        loaded(*case.args)
    with pytest.raises(pipeline.RefitError, match=r"linear.bias: it was loaded without its value"):
        pipeline.refit_module_weights(loaded, {"linear.weight": torch.zeros(8, 8)})
    whole = pipeline.refit_module_weights(loaded, case.model)
    assert_equal(whole(*case.args), program(*case.args))


@pytest.mark.parametrize("name", CASES)
def test_the_model_makes_a_program_without_weights_whole(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    program = compiled(case)
    loaded = kept(program, tmp_path, weights="none")
    assert all(parameter.is_meta or key in program.program.written for key, parameter in _parameters(loaded))
    loaded.save(tmp_path / "again.trtp", weights="none")
    assert (tmp_path / "again.trtp").read_bytes() == (tmp_path / "program.trtp").read_bytes()
    whole = pipeline.refit_module_weights(loaded, case.model)
    again, left, right = kept(whole, tmp_path), copy.deepcopy(case.args), copy.deepcopy(case.args)
    assert again.report() == program.report()
    assert_equal(again.module()(*left), program.module()(*right))


def _parameters(program: Compiled) -> list[tuple[str, torch.Tensor]]:
    return [*program.program.parameters.items()]


def test_a_program_without_weights_is_not_saved_with_them(tmp_path: Path) -> None:
    loaded = kept(compiled(CASES["fallback"]), tmp_path, weights="none")
    for weights in ("inside", tmp_path / "weights.safetensors"):
        with pytest.raises(pipeline.ArtifactError, match=r"linear\.\w+ has no value, because the program"):
            loaded.save(tmp_path / "other.trtp", weights=weights)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program.trtp"]


def test_places_of_weights_that_cannot_be_meant_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = compiled(CASES["whole"])
    monkeypatch.chdir(tmp_path)
    for weights in ("Inside", "NONE", ""):
        with pytest.raises(pipeline.ArtifactError, match=f"weights='{weights}' is neither a path nor"):
            program.save("p.trtp", weights=weights)
    for weights in ("p.trtp", Path("..", tmp_path.name, "p.trtp")):
        with pytest.raises(pipeline.ArtifactError, match=r"p\.trtp' is the program's own file"):
            program.save("p.trtp", weights=weights)
    assert not list(tmp_path.iterdir())


def test_weights_beside_the_program_are_missed_by_name(tmp_path: Path) -> None:
    case = CASES["whole"]
    loaded = kept(compiled(case), tmp_path, weights=tmp_path / "big.safetensors")
    assert "linear.weight" not in (tmp_path / "program.trtp").read_bytes()[-200:].decode(errors="replace")
    loaded(*case.args)
    (tmp_path / "big.safetensors").unlink()
    with pytest.raises(pipeline.ExecutionError, match=re.escape(f"{tmp_path / 'big.safetensors'} is missing")):
        pipeline.load(tmp_path / "program.trtp")(*case.args)


def test_both_files_can_be_moved_together(tmp_path: Path) -> None:
    case = CASES["whole"]
    (tmp_path / "a").mkdir()
    compiled(case).save(tmp_path / "a" / "p.trtp", weights=tmp_path / "a" / "w.safetensors")
    (tmp_path / "a").rename(tmp_path / "b")
    assert_equal(pipeline.load(tmp_path / "b" / "p.trtp")(*case.args), case.model(*case.args))


def test_tied_weights_are_kept_once(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(64, 32), nn.Linear(32, 64, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.out(self.embed(ids))

    program = compiled(Case(Tied().eval(), (torch.arange(4)[None],)))
    parameters = kept(program, tmp_path).program.parameters
    assert parameters["embed.weight"] is parameters["out.weight"]


def test_a_model_that_changed_in_place_is_not_saved(tmp_path: Path) -> None:
    case = CASES["whole"]
    model = copy.deepcopy(case.model)
    program = compiled(attrs.evolve(case, model=model))
    with torch.no_grad():
        model.linear.weight.add_(1)
    with pytest.raises(pipeline.ArtifactError, match=r"linear.weight was changed in place"):
        program.save(tmp_path / "p.trtp")
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_told_with_its_place(tmp_path: Path) -> None:
    program, before = compiled(CASES["whole"]), resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(FileNotFoundError, match=f"there is no folder to write p.trtp to: '{tmp_path / 'none'}'"):
        program.save(tmp_path / "none" / "p.trtp")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=r"\d{4,} bytes are to be written; free as much space.*p\.trtp"):
            program.save(tmp_path / "p.trtp")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_names_the_file_of_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"^\[Errno 28\] [^:]+: \d+ bytes are to be written; [^:]+: '.*/weights'$"):
        compiled(CASES["whole"]).save(tmp_path / "p.trtp", weights=tmp_path / "weights")
    assert not list(tmp_path.iterdir())


def test_a_loaded_program_closes_its_file(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    compiled(CASES["whole"]).save(tmp_path / "p.trtp", weights=tmp_path / "weights")
    gc.collect()  # of other tests
    recwarn.clear()
    warnings.simplefilter("always", ResourceWarning)
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else 0
    program = pipeline.load(tmp_path / "p.trtp")
    del program
    gc.collect()
    assert not [each for each in recwarn if issubclass(each.category, ResourceWarning)]
    assert not before or len(list(Path("/proc/self/fd").iterdir())) == before


def test_loading_says_where_it_runs(tmp_path: Path) -> None:
    compiled(CASES["whole"]).save(tmp_path / "p.trtp")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pipeline.load(tmp_path / "p.trtp")
    told = [str(warning.message) for warning in said if warning.category is pipeline.ArtifactWarning]
    assert torch.cuda.is_available() or any("runs on the CPU, in the slow reference executor" in text for text in told)


LEFT_OUT = {
    Program: {"graph_module", "versions", "examples", "decomposed", "origin"},
    Partitioned: {"program"},
    Compiled: {"partitioned", "took", "kernels"},
    Verdict: {"choice", "others"},
    Engine: {"plan", "key", "file"},
}


def test_every_field_of_the_records_is_kept_or_known_to_be_left_out() -> None:
    kept_fields = {field.name for record in (Manifest, SavedVerdict, SavedEngine) for field in attrs.fields(record)}
    for record, left_out in LEFT_OUT.items():
        names = {field.name for field in attrs.fields(record) if field.init}
        assert names - left_out <= kept_fields, f"{record.__name__}: manifest.py keeps its fields"
