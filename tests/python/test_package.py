"""The package shell: lazy import, version, options, logs, command line."""

import importlib.metadata
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mlcc
from mlcc import _load, cli, config
from mlcc import logging as mlcc_logging

ROOT = Path(__file__).resolve().parent.parent.parent

TABLE = [
    ("logs", "str", "", "MLCC_LOGS", "run", "channels"),
    ("dump", "str", "", "MLCC_DUMP", "run", "stages"),
    ("cache_dir", "str", "", "MLCC_CACHE_DIR", "run", "folder"),
    ("cache_size_mb", "int", 1024, "MLCC_CACHE_SIZE_MB", "run", "cap"),
    ("strict", "bool", False, "MLCC_STRICT", "run", "raise"),
    ("cpu", "str", "", "MLCC_CPU", "code", "CPU"),
    ("bisect", "int", -1, "MLCC_BISECT", "code", "stop"),
    ("verify", "str", "off", "MLCC_VERIFY", "run", "check"),
]


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> dict[str, config.Option]:
    """A small table in place of the one of the compiled core."""
    rows = {option.name: option for option in config._read_rows(TABLE)}
    monkeypatch.setattr(config, "_table", rows)
    monkeypatch.setattr(config, "_assigned", {})
    for row in TABLE:
        monkeypatch.delenv(row[3], raising=False)
    return rows


def test_import_is_lazy() -> None:
    code = "import sys, mlcc; print([m for m in sys.modules if m == 'torch' or m in ('mlcc._C', 'mlcc.config')])"
    assert run_python(code).stdout.strip() == "[]"


def test_names() -> None:
    assert {"jit", "config", "cache_info", "clear_cache", "Error", "InternalError"} <= set(
        dir(mlcc)
    )
    assert issubclass(mlcc.InternalError, mlcc.Error)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = mlcc.nope


def test_version_is_stated_once() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", mlcc.__version__)
    assert (Path(mlcc.__file__).parent / "py.typed").exists()
    assert mlcc.__version__ not in (ROOT / "pyproject.toml").read_text()
    assert mlcc.__version__ not in (ROOT / "setup.py").read_text()


def test_core_knows_version() -> None:
    core = _load.load_core()
    assert core.version() == mlcc.__version__
    assert re.fullmatch(r"[0-9a-f]{16,}", core.build_id())
    assert core.torch_version() == _load.built_torch_version()


def test_entry_points() -> None:
    points = importlib.metadata.entry_points()
    assert "mlcc" in points.select(group="torch_dynamo_backends").names
    assert "mlcc" in points.select(group="torch.backends").names


def test_wrong_torch() -> None:
    _load.check_torch("2.13.0", "2.13.1+cpu")
    expected = (
        "built for torch 2.13.0, found 2.12.1; "
        "run pip install --no-build-isolation --no-deps --force-reinstall . in mlcc's source"
    )
    with pytest.raises(mlcc.Error, match=f"^{re.escape(expected)}$"):
        _load.check_torch("2.13.0", "2.12.1")


def test_table_of_the_core() -> None:
    table = _load.load_core().option_table()
    rows = {option.name: option for option in config._read_rows(table)}
    assert rows["cpu"].option_class == "code"
    assert rows["bisect"].option_class == "code"
    for name, row in rows.items():
        assert row.env == f"MLCC_{name.upper()}"
        assert row.option_class in ("code", "run")
        assert isinstance(row.default, row.type)
        assert row.help
    for name in ("logs", "dump", "dump_dir", "cache_dir", "cache_size_mb", "disable", "strict"):
        assert rows[name].option_class == "run"


def test_type_checkers_see_the_options() -> None:
    rows = config._read_rows(_load.load_core().option_table())
    public = {n: text for n, text in config.__annotations__.items() if not n.startswith("_")}
    assert public == {row.name: row.type.__name__ for row in rows}


def test_precedence(options: dict[str, config.Option], monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.cache_size_mb == 1024
    assert config.origin("cache_size_mb") == "default"
    monkeypatch.setenv("MLCC_CACHE_SIZE_MB", "7")
    assert config.cache_size_mb == 7
    assert config.origin("cache_size_mb") == "environment"
    config.cache_size_mb = 8
    assert config.cache_size_mb == 8
    with config.patch(cache_size_mb=9):
        assert config.cache_size_mb == 9
        assert config.origin("cache_size_mb") == "patch"
        with config.patch(strict=True):
            assert config.resolve()["cache_size_mb"] == 9
            assert config.resolve({"cache_size_mb": 10})["cache_size_mb"] == 10
            assert config.strict
        assert config.resolve()["strict"] is False
    assert config.cache_size_mb == 8
    del config.cache_size_mb
    assert config.cache_size_mb == 7


def test_patch_is_per_thread(options: dict[str, config.Option]) -> None:
    seen = []
    with config.patch(cpu="haswell"):
        thread = threading.Thread(target=lambda: seen.append(config.cpu))
        thread.start()
        thread.join()
        assert config.cpu == "haswell"
    assert seen == [""]


def test_patch_decorates(options: dict[str, config.Option]) -> None:
    @config.patch(cpu="haswell")
    def nested(depth: int) -> Any:
        return config.cpu if depth == 0 else nested(depth - 1)

    assert nested(2) == "haswell"
    assert config.cpu == ""


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: config.patch(cache_dri="x"), "unknown option cache_dri; nearest: cache_dir"),
        (lambda: config.resolve({"stric": True}), "unknown option stric; nearest: strict"),
        (lambda: getattr(config, "bisekt"), "unknown option bisekt; nearest: bisect"),
        (lambda: config.patch(strict=1), "option strict: expected True or False, found 1"),
        (lambda: config.patch(bisect="x"), "option bisect: expected an integer, found 'x'"),
        (lambda: config.patch(bisect=True), "option bisect: expected an integer, found True"),
        (
            lambda: config.patch(cache_size_mb=-1),
            "option cache_size_mb: expected at least 0, found -1",
        ),
        (lambda: config.patch(cpu=3), "option cpu: expected a string, found 3"),
        (
            lambda: config.patch(dump="grahp"),
            "option dump: unknown stage grahp; nearest: graph (of graph, loop, llvm, asm, cuda, ptx)",
        ),
        (
            lambda: config.patch(verify="alwys"),
            "option verify: expected one of off, first, sample, always, nan, found 'alwys'; nearest: always",
        ),
        (lambda: setattr(config, "stric", True), "unknown option stric; nearest: strict"),
    ],
)
def test_bad_option(
    options: dict[str, config.Option], use: Callable[[], Any], message: str
) -> None:
    with pytest.raises(mlcc.Error, match=f"^{re.escape(message)}$"):
        use()


@pytest.mark.parametrize(
    ("env", "text", "message"),
    [
        (
            "MLCC_STRICT",
            "ture",
            "option strict (MLCC_STRICT): expected 0 or 1 (false or true, off or on, no or yes), "
            "found 'ture'; nearest: true",
        ),
        ("MLCC_BISECT", "1x", "option bisect (MLCC_BISECT): expected an integer, found '1x'"),
    ],
)
def test_bad_environment(
    options: dict[str, config.Option],
    monkeypatch: pytest.MonkeyPatch,
    env: str,
    text: str,
    message: str,
) -> None:
    monkeypatch.setenv(env, text)
    with pytest.raises(mlcc.Error, match=f"^{re.escape(message)}$"):
        config.resolve()


def test_hasattr_answers(options: dict[str, config.Option]) -> None:
    assert hasattr(config, "cpu")
    assert not hasattr(config, "no_such_thing")


def test_cache_directory(
    options: dict[str, config.Option], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert config.cache_directory() == tmp_path / "mlcc"
    with config.patch(cache_dir=tmp_path / "other"):
        assert config.cache_directory() == tmp_path / "other"


def test_parse_logs() -> None:
    levels, problems = mlcc_logging.parse("recompiles, +graph,,fusoin")
    assert levels == {"recompiles": logging.INFO, "graph": logging.DEBUG}
    (problem,) = problems
    assert problem.startswith("unknown log channel fusoin; nearest: fusion (of recompiles, graph,")
    assert set(mlcc_logging.parse("all")[0]) == set(mlcc_logging.CHANNELS)
    assert mlcc_logging.parse("all,+cache")[0]["cache"] == logging.DEBUG


LOG = """
import sys
from mlcc import logging
assert 'torch' not in sys.modules
{more}
logging.get_logger('graph').info('a graph')
logging.get_logger('graph').debug('its detail')
logging.get_logger('fusion').info('a group')
logging.get_logger('cache').debug('a detail')
"""


@pytest.mark.parametrize("more", ["", "import torch; logging.configure()"])
def test_mlcc_logs(more: str) -> None:
    result = run_python(LOG.format(more=more), MLCC_LOGS="graph,+cache,fuson")
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if line]
    assert len(lines) == 3
    assert "MLCC_LOGS: unknown log channel fuson; nearest: fusion" in lines[0]
    times, texts = zip(*(line.split(" ", 1) for line in lines[1:]), strict=True)
    assert texts == ("[mlcc.graph] INFO a graph", "[mlcc.cache] DEBUG a detail")
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}", time) for time in times)


def test_torch_logs() -> None:
    code = (
        "import torch; from mlcc import logging\n"
        "for c in ('graph', 'cache'): logging.get_logger(c).info('line of %s', c)"
    )
    result = run_python(code, TORCH_LOGS="mlcc_graph")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("line of graph") == 1
    assert "line of cache" not in result.stderr


def test_autoload_is_light() -> None:
    code = (
        "import torch, sys, time; from mlcc.torch_private import autoload; autoload._done = False\n"
        "start = time.perf_counter(); autoload.autoload()\n"
        "print(time.perf_counter() - start, 'mlcc._C' in sys.modules, 'mlcc.config' in sys.modules)"
    )
    seconds, core, options = run_python(code).stdout.split()
    assert float(seconds) < 0.001
    assert (core, options) == ("False", "False")


def test_autoload_never_raises(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mlcc.torch_private import autoload

    monkeypatch.setattr(autoload, "_done", False)
    monkeypatch.setitem(sys.modules, "torch._logging", None)
    autoload.autoload()
    autoload.autoload()


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert f"mlcc             {mlcc.__version__}" in out
    assert "torch built for  2." in out
    assert re.search(r"strict = True  \[environment; MLCC_STRICT; run\]", out)


def test_cache_command(capsys: pytest.CaptureFixture[str], fresh_cache: Path) -> None:
    assert cli.main(["cache"]) == 0
    assert str(fresh_cache) in capsys.readouterr().out
    assert cli.main(["cache", "--clear"]) == 0


def test_module_runs() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mlcc", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout.strip() == f"mlcc {mlcc.__version__}"


def test_bench_runs_the_suite_of_the_checkout(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", "--help"])
    assert end.value.code == 0
    assert "--survey" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        cli.main(["info", "--survey"])
    assert end.value.code == 2
    assert "unrecognized arguments: --survey" in capsys.readouterr().err


def test_bench_of_a_wheel_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_SUITE", tmp_path / "benchmarks" / "suite.py")
    assert cli.main(["bench", "--filter", "softmax"]) == 1
    assert "make bench" in capsys.readouterr().err
