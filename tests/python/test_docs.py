"""The documentation is right: its programs run, its references are in step, what is public is described."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlcc import config
from mlcc import logging as mlcc_logging

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAYS = re.compile(r"  # (?:-> (?P<value>.*)|raises (?P<error>\w+))$")


def blocks(page: str) -> list[tuple[int, str]]:
    """The Python blocks of a page: the line where each begins, and its text."""
    text = (ROOT / page).read_text()
    return [(text[: match.start()].count("\n") + 2, match[1]) for match in BLOCK.finditer(text)]


def statements(
    page: str, line: int, source: str
) -> Iterator[tuple[ast.stmt, re.Match[str] | None]]:
    """The statements of a block, each with what the comment behind it says."""
    lines = source.splitlines()
    for statement in ast.parse(source, page).body:
        assert statement.end_lineno is not None
        says = SAYS.search(lines[statement.end_lineno - 1])
        ast.increment_lineno(statement, line - 1)
        yield statement, says


def run_block(page: str, line: int, source: str, names: dict[str, Any]) -> None:
    """Execute a block; values and errors that it tells of must come."""
    for statement, says in statements(page, line, source):
        where = f"{page}:{statement.lineno}"
        if says is None:
            exec(compile(ast.Module([statement], []), page, "exec"), names)
        elif says["error"]:
            assert isinstance(statement, ast.Expr), where
            with pytest.raises(Exception) as caught:
                eval(compile(ast.Expression(statement.value), page, "eval"), names)
            assert type(caught.value).__name__ == says["error"], where
        else:
            assert isinstance(statement, ast.Expr), where
            value = eval(compile(ast.Expression(statement.value), page, "eval"), names)
            assert str(value) == says["value"], where


@pytest.fixture(autouse=True)
def as_found() -> Iterator[None]:
    """Options, environment and log channels that a program sets are no other test's."""
    assigned, before = dict(config._assigned), dict(os.environ)
    yield
    config._assigned.clear()
    config._assigned.update(assigned)
    os.environ.clear()
    os.environ.update(before)
    mlcc_logging.configure()


# -- programs


@pytest.mark.parametrize(
    ("line", "source"),
    blocks("docs/known_differences.md")[1:],
    ids=lambda part: str(part) if isinstance(part, int) else "",
)
def test_known_difference(line: int, source: str) -> None:
    page = "docs/known_differences.md"
    names: dict[str, Any] = {"__name__": "docs"}
    begin, prelude = blocks(page)[0]
    run_block(page, begin, prelude, names)
    run_block(page, line, source, names)


def run_page(page: str) -> None:
    """Execute the blocks of a page one after another."""
    names: dict[str, Any] = {"__name__": "docs"}
    for line, source in blocks(page):
        run_block(page, line, source, names)


TUTORIALS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs/tutorials").glob("*.md"))


@pytest.mark.parametrize("page", TUTORIALS)
def test_tutorial(page: str, fresh_cache: Path) -> None:
    run_page(page)


def test_readme() -> None:
    """The ten lines run as they are; the block before them is one line of a program."""
    (_, head), (line, source) = blocks("README.md")
    assert head == 'compiled = torch.compile(model, backend="mlcc")\n'
    run_block("README.md", line, source, {"__name__": "docs"})


# -- texts beside programs


def test_one_op_shows_what_is_made(tmp_path: Path, fresh_cache: Path) -> None:
    """The graph and, on a CPU as wide as the page's, the loops are those of docs/one_op.md."""
    import torch

    from mlcc import config
    from mlcc._load import load_core

    page = "docs/one_op.md"
    with config.patch(dump="graph,loop", dump_dir=str(tmp_path)):
        torch._dynamo.reset()
        for line, source in blocks(page):
            run_block(page, line, source, {"__name__": "docs"})
    text = (ROOT / page).read_text()
    assert next(tmp_path.glob("*/000_input.graph")).read_text() in text
    if load_core().cpu_info()["vector_bits"] == 512:
        assert next(tmp_path.glob("*/002_kernel0.loop")).read_text() in text


def test_the_pass_of_the_tutorial_compiles(tmp_path: Path) -> None:
    """Its header and its source are C++ against the headers as they are; its test is a graph."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    text = (ROOT / "docs/tutorials/writing_a_pass.md").read_text()
    header, source = re.findall(r"^```cpp\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    folder = tmp_path / "graph/passes/simplify"
    folder.mkdir(parents=True)
    (folder / "drop_signs.h").write_text(header)
    (folder / "drop_signs.cpp").write_text(source)
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{tmp_path}", f"-I{ROOT / 'csrc'}"]
    run = subprocess.run(
        [*command, "-Wall", "-Werror", str(folder / "drop_signs.cpp")],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    table = (ROOT / "csrc/graph/passes/passes.def").read_text()
    assert re.search(r"^GRAPH_PASS\(k\w+, \w+, \"\w+\", \w+Options,\n", table, re.MULTILINE)
    pipeline = (ROOT / "csrc/graph/passes/pipeline.cpp").read_text()
    assert "    has_changed |= runner.run(Pass::k" in pipeline


PATH = re.compile(
    r"`((?:csrc|mlcc|tools|tests|benchmarks|scripts|examples|docs|cmake)/[\w./-]*\w/?)`"
)
TO_BE_WRITTEN = re.compile(r"drop_signs")  # by the reader of a tutorial


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
    ],
)
def test_paths_exist(page: str) -> None:
    """Files and folders that a page names in full are there."""
    text = (ROOT / page).read_text()
    named = {path for path in PATH.findall(text) if not TO_BE_WRITTEN.search(path)}
    assert not sorted(path for path in named if not (ROOT / path).exists())


LINK = re.compile(r"\]\(((?!https?:)[^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_of_pages_outside_of_the_site(page: str) -> None:
    """`make docs` follows the links of docs/; these are not among its pages."""
    links = LINK.findall((ROOT / page).read_text())
    assert not [link for link in links if not (ROOT / link).exists()]


def test_every_page_can_be_reached() -> None:
    """Each page stands in the navigation of the site; decisions are listed on a page of their own."""
    named = set(re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    made = {*load_script("tools/docs_hooks.py").PAGES, "decisions/index.md"}
    assert {page for page in pages if not page.startswith("decisions/")} == named - made
    assert made <= named


def test_pages_of_the_root_have_links_of_the_site() -> None:
    hooks = load_script("tools/docs_hooks.py")
    text = "[a](docs/jit.md#b) [c](CONTRIBUTING.md) [d](docs/decisions/) [e](LICENSE) [f](no.md) ![g](docs/h.svg)"
    assert hooks.as_page(text) == (
        "[a](jit.md#b) [c](contributing.md) [d](decisions/index.md) e [f](no.md) ![g](h.svg)"
    )
    decisions = hooks.list_of_decisions(ROOT / "docs/decisions")
    assert "- 0024 [Kept values](0024-kept-values.md)" in decisions


@pytest.mark.parametrize(("page", "most"), [("README.md", 150), ("docs/status.md", 120)])
def test_the_front_door_is_short(page: str, most: int) -> None:
    lines = (ROOT / page).read_text().splitlines()
    assert len(lines) <= most
    assert max(map(len, lines)) <= 400


# -- references


def load_script(path: str) -> Any:
    """A script of tools/ or benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses ask for it
    spec.loader.exec_module(module)
    return module


def test_options_are_in_step() -> None:
    """The page has the rows of options.def, and these are the options of mlcc.config."""
    from mlcc import config

    script = load_script("tools/option_reference.py")
    assert script.main(["--check"]) == 0, "run tools/option_reference.py"
    rows = [row for _, rows in script.read_sections(script.TABLE.read_text()) for row in rows]
    known = {
        name: (option.env, option.type.__name__, option.option_class, option.help)
        for name, option in config.table().items()
    }
    assert {row.name: (row.env, row.type, row.option_class, row.help) for row in rows} == known


def test_the_option_page_notices_a_change() -> None:
    script = load_script("tools/option_reference.py")
    old = script.PAGE.read_text()
    changed = old.replace("`MLCC_STRICT`", "`MLCC_STERN`")
    assert changed != old
    assert script.page(changed) == old


def test_picture_is_in_step() -> None:
    script = load_script("benchmarks/picture.py")
    assert script.main(["--check"]) == 0, "run benchmarks/picture.py"
    data = json.loads(script.DATA.read_text())
    data["milliseconds"]["ResNet-50"]["mlcc"] *= 2
    assert script.picture(data) != script.PICTURE.read_text()


def public_names() -> Iterator[str]:
    """What users may type, as docs/reference/api.md names it."""
    import mlcc
    from mlcc import config, logging

    for name in mlcc.__all__:
        yield f"mlcc.{name}"
    for name in set(dir(config)) - set(config.table()):
        yield f"mlcc.config.{name}"
    for name, value in vars(logging).items():
        if inspect.isfunction(value) and value.__module__ == "mlcc.logging" and name[0] != "_":
            yield f"mlcc.logging.{name}"


def test_public_names_are_described() -> None:
    page = (ROOT / "docs/reference/api.md").read_text()
    described = set(re.findall(r"^(?:::: |## |.*`)([\w.]+)`?", page, re.MULTILINE))
    assert not sorted(set(public_names()) - described)


def test_keys_and_channels_are_described() -> None:
    """What `cache_info` gives, and what the logs are called."""
    import mlcc
    from mlcc._channels import CHANNELS

    page = (ROOT / "docs/reference/api.md").read_text()
    cells = re.findall(r"^\| (`[^|]*`) \| ", page, re.MULTILINE)
    described = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert not set(mlcc.cache_info()) - described
    for channel, text in CHANNELS.items():
        assert f"| `{channel}` | {text} |" in page


def test_commands_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    from mlcc import cli

    with pytest.raises(SystemExit):
        cli.main(["--help"])
    commands = re.findall(r"^    (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert len(commands) >= 3
    page = (ROOT / "docs/reference/api.md").read_text()
    assert not [command for command in commands if f"`mlcc {command}`" not in page]


def test_public_names_have_docstrings() -> None:
    import mlcc

    for name in public_names():
        value: Any = mlcc
        for part in name.split(".")[1:]:
            value = getattr(value, part)
        assert isinstance(value, str) or inspect.getdoc(value), name


# -- examples


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("quickstart", []),
        ("training", ["15"]),
        ("serving", []),
        ("quantize", ["--small"]),
        ("generate", ["--small", "--tokens", "4"]),
        ("serve", ["--small", "--clients", "2", "--tokens", "4"]),
    ],
)
def test_example(
    script: str, arguments: list[str], fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / f"examples/{script}.py"
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    runpy.run_path(str(path), run_name="__main__")


def test_every_example_is_run() -> None:
    scripts = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert scripts == {
        "demo",
        "quickstart",
        "training",
        "serving",
        "serve",
        "quantize",
        "generate",
    }  # test_demo.py


def test_notebook(fresh_cache: Path) -> None:
    """The code cells, one after another; the notebook is kept without results."""
    notebook = json.loads((ROOT / "examples/look_inside.ipynb").read_text())
    names: dict[str, Any] = {"__name__": "docs"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
