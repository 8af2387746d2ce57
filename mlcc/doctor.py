"""`python -m mlcc doctor`: whether this installation works, in plain words, and what to do where it does not."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from mlcc import _environment, config
from mlcc._errors import Error
from mlcc._load import (
    BUILD_HINT,
    built_torch_version,
    check_torch,
    has_cpu_code_generator,
    llvm_library,
    load_core,
    missing_bytes,
)
from mlcc._version import __version__

OK, WARNING, PROBLEM = "ok", "warning", "problem"

_LEAST_FREE_MIB = 256  # of the cache folder's disk
_MIB = 1 << 20
_REPORT = "report it, with what `python -m mlcc info` prints"

# Features of x86 CPUs that code is made for, as LLVM and as people call them.
_INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512vnni": "VNNI",
    "avx512bf16": "BF16",
    "amx-tile": "AMX",
}


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    subject: str
    state: str  # ok, warning or problem: the last means that something does not work
    text: str
    remedy: str = ""  # what to do; empty where all is well


def examine() -> list[Finding]:
    """Every check, in the order in which one rests on another."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they tell is a finding
        return list(_examine())


def _examine() -> Iterator[Finding]:
    findings = [*_of_torch(), *_of_core()]
    if all(finding.state != PROBLEM for finding in findings):
        findings += _guarded("options", _of_options)
    yield from findings
    if any(finding.state == PROBLEM for finding in findings):
        return
    for subject, check in (
        ("cpu", _of_cpu),
        ("code generator", _of_code_generator),
        ("cache folder", _of_cache_folder),
        ("threads", _of_threads),
        ("gpu", _of_gpu),
    ):
        yield from _guarded(subject, check)


def report(findings: list[Finding], as_json: bool) -> int:
    """Print what was found and return the exit status: 1 where something does not work."""
    works = all(finding.state != PROBLEM for finding in findings)
    if as_json:
        print(json.dumps({"works": works, "findings": [asdict(one) for one in findings]}, indent=2))
        return 0 if works else 1
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        remedy = f"; remedy: {finding.remedy}" if finding.remedy else ""
        print(f"{finding.state:<7}  {finding.subject:<{width}}  {finding.text}{remedy}")
    return 0 if works else 1


def _guarded(subject: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """What a check finds; that it fails is a finding too."""
    findings = []
    try:
        for finding in check():
            findings.append(finding)
    except Exception as error:
        text = f"cannot be examined: {type(error).__name__}: {_first_line(error)}"
        findings.append(Finding(subject, PROBLEM, text, _REPORT))
    return findings


def _first_line(error: BaseException) -> str:
    error = getattr(error, "inner_exception", error)  # behind Dynamo's words
    return str(error).split("\n")[0] or type(error).__name__


# -- the installation


def _of_torch() -> Iterator[Finding]:
    built = built_torch_version()
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # a broken torch raises many kinds
        yield Finding(
            "torch",
            PROBLEM,
            f"cannot be imported: {_first_line(error)}",
            f"pip install torch=={built}" if built else "pip install torch",
        )
        return
    found = str(torch.__version__)
    cuda = torch.version.cuda
    kind = f"a build for CUDA {cuda}" if cuda else "a build for CPUs"
    if built is None:
        yield Finding("torch", OK, f"{found}, {kind}")
        return
    try:
        check_torch(built, found)
    except Error:
        remedy = f"pip install torch=={built}, or {BUILD_HINT}"
        yield Finding("torch", PROBLEM, f"{found}, {kind}, but mlcc was built for {built}", remedy)
        return
    yield Finding("torch", OK, f"{found}, {kind}; mlcc was built for {built}")


def _of_core() -> Iterator[Finding]:
    try:
        core = load_core()
    except Exception as error:
        yield Finding(
            "core", PROBLEM, _first_line(error).removesuffix(f"; {BUILD_HINT}"), BUILD_HINT
        )
        return
    build_type = importlib.import_module("mlcc._build_info").BUILD_TYPE
    text = f"mlcc {__version__}, {build_type} build {core.build_id()[:12]}"
    if core.version() != __version__:
        text = f"mlcc {core.version()} beside Python code of mlcc {__version__}"
        yield Finding("core", PROBLEM, text, BUILD_HINT)
    elif build_type == "Debug":
        yield Finding("core", WARNING, f"{text}: compiling is slow", BUILD_HINT)
    else:
        yield Finding("core", OK, text)


def _of_options() -> Iterator[Finding]:
    options = config.table().values()
    unknown = _environment.unknown(os.environ, [option.env for option in options])
    for name, nearest in unknown.items():
        remedy = (
            f"did you mean {nearest}?" if nearest else "unset it; `python -m mlcc info` has all"
        )
        yield Finding("options", WARNING, f"{name} is unknown and changes nothing", remedy)
    is_fine = not unknown
    for option in options:
        try:
            value = getattr(config, option.name)
        except Error as error:
            is_fine = False
            yield Finding("options", PROBLEM, _first_line(error), f"set {option.env} to another")
            continue
        if option.name == "disable" and value:
            is_fine = False
            where = config.origin(option.name)
            text = f"disable is on ({where}): everything runs eagerly"
            yield Finding("options", WARNING, text, f"unset {option.env}")
    if is_fine:
        changed = [option.name for option in options if config.origin(option.name) != "default"]
        yield Finding("options", OK, f"set: {', '.join(changed)}" if changed else "all as usual")


# -- what compiles


def _of_cpu() -> Iterator[Finding]:
    if not has_cpu_code_generator() or missing_bytes(llvm_library()):
        return  # which is the next finding
    info = load_core().cpu_info()
    used = [name for one, name in _INSTRUCTIONS.items() if f"+{one}" in info["features"]]
    text = f"{info['name']}: code uses {', '.join(used)}, vectors of {info['vector_bits']} bits"
    if info["vector_bits"]:
        yield Finding("cpu", OK, text)
    else:
        remedy = "none on this CPU; one with AVX2 or AVX-512 is much faster"
        yield Finding("cpu", WARNING, f"{info['name']}, without vectors", remedy)


def _of_code_generator() -> Iterator[Finding]:
    library = llvm_library()
    if not has_cpu_code_generator():
        is_for_gpus = "reason" not in load_core().gpu_info()
        state = WARNING if is_for_gpus else PROBLEM
        text = f"{library} is missing: graphs of the CPU run eagerly"
        yield Finding("code generator", state, text, f"{BUILD_HINT}, with LLVM installed")
        return
    missing = missing_bytes(library)
    if missing:
        text = f"{library} ends {missing} bytes early, as of a copy that was interrupted"
        yield Finding("code generator", PROBLEM, text, BUILD_HINT)
        return
    fault = compile_and_compare()
    if fault:
        remedy = BUILD_HINT if str(library) in fault else _REPORT
        yield Finding("code generator", PROBLEM, fault, remedy)
    else:
        text = f"{library}: a function was compiled, and its results are eager's"
        yield Finding("code generator", OK, text)


def compile_and_compare() -> str:
    """Compile a small function for the CPU without any cache: what is wrong with it, or ''."""
    import torch

    from mlcc.capture import backend

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.exp(x) * 0.5 + x, -1).sum(0)

    function.__code__ = function.__code__.replace()  # one that Dynamo has not compiled yet
    executed = backend.timings().graphs
    x = torch.linspace(-1, 1, 35).reshape(5, 7)
    options = {"gpu": "off", "cache_size_mb": 0, "torch_caches": False, "disable": False}
    compiled = torch.compile(function, backend=backend.compile, options={**options, "strict": True})
    try:
        with torch.no_grad():
            result = compiled(x)
    except Exception as error:
        return f"a function does not compile: {_first_line(error)}"
    expected = function(x)
    if not torch.allclose(result, expected, rtol=1e-5, atol=1e-6):
        worst = (result - expected).abs().max().item()
        return f"a function gives wrong numbers, off by {worst:.3g}"
    return "" if backend.timings().graphs > executed else "a function was not compiled by mlcc"


# -- what surrounds it


def _of_cache_folder() -> Iterator[Finding]:
    folder = _writable_folder()
    if isinstance(folder, Finding):
        yield folder
        return
    cap = int(config.cache_size_mb)
    if cap == 0:
        text = f"{folder}: unused, since cache_size_mb is 0; each process compiles anew"
        yield Finding("cache folder", WARNING, text, "unset MLCC_CACHE_SIZE_MB")
        return
    files = [path for path in folder.rglob("*") if path.is_file()]
    used = sum(path.stat().st_size for path in files if path.exists()) / _MIB
    free = shutil.disk_usage(folder).free // _MIB
    text = f"{folder}: writable, {used:.1f} MiB of at most {cap}, {free} MiB free on the disk"
    if free < _LEAST_FREE_MIB:
        remedy = "free some, or let MLCC_CACHE_DIR name a folder elsewhere"
        yield Finding("cache folder", WARNING, text, remedy)
    else:
        yield Finding("cache folder", OK, text)


def _writable_folder() -> Path | Finding:
    """The cache folder, made if need be, or why kernels cannot be kept there."""
    remedy = "let MLCC_CACHE_DIR name a folder that you may write to"
    try:
        folder = config.cache_directory()
        if folder is None:
            text = "none: there is no home; each process compiles anew"
            return Finding("cache folder", WARNING, text, remedy)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=folder):
            return folder
    except OSError as error:
        place = error.filename or "the cache folder"
        text = f"{place}: {error.strerror}; each process compiles anew"
        return Finding("cache folder", WARNING, text, remedy)


def _of_threads() -> Iterator[Finding]:
    import torch

    cores = len(os.sched_getaffinity(0))
    option = int(config.num_threads)
    threads = option or torch.get_num_threads()
    text = f"{threads} run kernels; this process may use {cores} CPUs"
    if threads > cores:
        remedy = f"torch.set_num_threads({cores}), or OMP_NUM_THREADS={cores}"
        remedy = f"num_threads={cores}, or 0 for as many as torch has" if option else remedy
        yield Finding("threads", WARNING, f"{text}, so they wait for one another", remedy)
    else:
        yield Finding("threads", OK, text)


def _of_gpu() -> Iterator[Finding]:
    import torch

    info = load_core().gpu_info()
    if "reason" not in info:
        details = ", ".join(f"{name} {value}" for name, value in info.items() if name != "name")
        yield Finding("gpu", OK, f"{info['name']} ({details})")
        return
    reason = str(info["reason"])
    if not torch.cuda.is_available():
        yield Finding("gpu", OK, f"none for torch, so none is needed ({reason})")
        return
    yield Finding(
        "gpu", WARNING, f"torch has one, but mlcc makes no code for it: {reason}", _cure(reason)
    )


def _cure(reason: str) -> str:
    if "option gpu" in reason:
        return "unset MLCC_GPU"
    if "NVRTC" in reason:
        return "pip install nvidia-cuda-nvrtc, or let MLCC_NVRTC name libnvrtc.so"
    return "install or update NVIDIA's driver, or let MLCC_LIBCUDA name libcuda.so.1"
