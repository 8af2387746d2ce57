"""Every test process: internal errors raise, caches are private and start empty."""

import atexit
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before anything imports torch or mlcc, and inherited by the processes that tests start.
# Under MLCC_TESTS_CACHES=<folder> they are there and stay: a second run finds them full, and must read them.
_kept = os.environ.get("MLCC_TESTS_CACHES")
_folder = _kept or tempfile.mkdtemp(prefix="mlcc-tests-")
_is_warm = bool(_kept) and os.path.isdir(os.path.join(_folder, "torch"))
if not _kept:
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
os.environ["MLCC_STRICT"] = "1"
os.environ["MLCC_MEASURE"] = "0"
# Else tests that compile a function again after a reset would load it.
os.environ["MLCC_WARM_START"] = "0"
os.environ["MLCC_CACHE_DIR"] = os.path.join(_folder, "cache")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(_folder, "torch")
os.environ["HF_HUB_OFFLINE"] = "1"
for _name in ("MLCC_LOGS", "TORCH_LOGS", "MLCC_DUMP", "MLCC_DISABLE", "MLCC_CPU"):
    os.environ.pop(_name, None)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """On warm caches, nothing that was loaded from them is a failure: nothing was tested then."""
    from torch._dynamo.utils import counters

    loaded = counters["aot_autograd"]["autograd_cache_hit"]
    if _kept:
        print(f"\n{loaded} graphs were loaded from torch's cache")
    if _is_warm and not loaded:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


settings.register_profile("seeded", derandomize=True, deadline=None, database=None, max_examples=60)
settings.register_profile(
    "long", deadline=None, max_examples=1000, suppress_health_check=list(HealthCheck)
)
settings.load_profile("seeded")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random inputs are the same in each run, whatever ran before."""
    import torch

    torch.manual_seed(0)


@pytest.fixture
def nothing_kept() -> Iterator[None]:
    """A test begins and ends without kept values, and what Dynamo has compiled goes."""
    import torch

    import mlcc

    mlcc.clear_packs()
    yield
    torch._dynamo.reset()
    mlcc.clear_packs()


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for one test; the path."""
    monkeypatch.setenv("MLCC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    return tmp_path / "cache"


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def mlcc_log() -> Callable[..., AbstractContextManager[list[str]]]:
    """`with mlcc_log("recompiles") as lines:` collects what the channel logs (caplog misses it under torch)."""

    @contextmanager
    def collect(channel: str, level: int = logging.INFO) -> Iterator[list[str]]:
        logger = logging.getLogger(f"mlcc.{channel}")
        handler, before = _Lines(), logger.level
        logger.addHandler(handler)
        logger.setLevel(level)
        try:
            yield handler.lines
        finally:
            logger.setLevel(before)
            logger.removeHandler(handler)

    return collect
