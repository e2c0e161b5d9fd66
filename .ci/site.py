"""Hooks of mkdocs: the reference has every public name, the navigation every page, and the site the measurements."""

import ast
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
KINDS = {"Errors and warnings": ("Error", "Warning", "Exception")}


def public() -> list[str]:
    """The public names of ``pipeline``, without importing it."""
    tree = ast.parse((ROOT / "pipeline" / "__init__.py").read_text(encoding="utf-8"))
    [places] = (n.value for n in tree.body if isinstance(n, ast.AnnAssign) and getattr(n.target, "id", "") == "_PLACES")
    return sorted(name for names in ast.literal_eval(places.args[0]).values() for name in names.split())


def title(name: str) -> str:
    """The section of a name."""
    if name.endswith(KINDS["Errors and warnings"]):
        return "Errors and warnings"
    return "Functions" if name[0].islower() else "Registries and tables" if name.isupper() else "Records and classes"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page of the reference, with a block for each name; elsewhere, links to results lead to those of the site."""
    if page.file.src_uri != "reference.md":
        return markdown.replace("](../benchmarks/results/", "](data/")
    rows: dict[str, list[str]] = {}
    for name in public():
        rows.setdefault(title(name), []).append(f"::: pipeline.{name}\n    options:\n      heading_level: 3\n")
    order = ("Functions", "Records and classes", "Registries and tables", "Errors and warnings")
    sections = (f"## {section}\n\n" + "\n".join(rows[section]) for section in order if section in rows)
    return "\n".join([markdown, *sections])


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """The files of the site, with those of benchmarks/results in ``data``."""
    from mkdocs.structure.files import File

    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        files.append(File.generated(config, f"data/{path.name}", abs_src_path=str(path)))
    return files


def on_config(config: Any) -> Any:
    """Leave out of the navigation what this checkout has no page for, and put what it has besides at the end."""
    docs = Path(config["docs_dir"])
    nav = there(config["nav"], docs)
    named = set(pages(nav))
    rest = sorted(path.name for path in docs.glob("*.md") if path.name not in named)
    config["nav"] = nav + ([{"More": [{heading(docs / name): name} for name in rest]}] if rest else [])
    return config


def pages(entries: list[Any]) -> list[str]:
    """The pages of a navigation, at any depth."""
    targets = [target for entry in entries for target in entry.values()]
    return [page for target in targets for page in (pages(target) if isinstance(target, list) else [target])]


def heading(path: Path) -> str:
    """What a page calls itself."""
    return path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def there(entries: list[Any], docs: Path) -> list[Any]:
    """The entries whose pages exist."""
    kept = []
    for entry in entries:
        [(name, target)] = entry.items()
        if isinstance(target, list):
            kept.append({name: there(target, docs)})
        elif (docs / target).is_file():
            kept.append(entry)
    return kept


def on_post_page(output: str, **_: Any) -> str:
    """Take what the search needs where a page is opened as a file from the site, not from a network."""
    return output.replace("https://unpkg.com/iframe-worker/shim", "assets/iframe-worker.js")
