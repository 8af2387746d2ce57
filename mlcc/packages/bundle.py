"""Bundles: a model as an object file and a header, for programs that have no runtime, no files and no allocator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

_C_TYPES = {
    "bool": "uint8_t",  # 0 or 1
    "u8": "uint8_t",
    "i8": "int8_t",
    "i16": "int16_t",
    "i32": "int32_t",
    "i64": "int64_t",
    "f16": "uint16_t",  # the bits: C11 has no type for it
    "bf16": "uint16_t",
    "f32": "float",
    "f64": "double",
}


def c_name(text: str) -> str:
    """`text` as an identifier of C."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if name and not name[0].isdigit() else f"m_{name}"


def write(path: Path, facts: Mapping[str, Any], *, arena_alignment: int = 64) -> list[Path]:
    """Writes PATH.o and PATH.h, and PATH.weights where the object holds none; what was written."""
    name = c_name(path.name)
    written = [path.with_suffix(".o"), path.with_suffix(".h")]
    written[0].write_bytes(facts["object"])
    if facts["weights"]:
        written.append(path.with_suffix(".weights"))
        written[2].write_bytes(facts["weights"])
    written[1].write_text(header(name, facts, arena_alignment), encoding="utf-8")
    return written


def header(name: str, facts: Mapping[str, Any], alignment: int) -> str:
    """The header of a bundle: structs of its arguments and results, and its function."""
    upper = name.upper()
    weights = len(facts["weights"])
    inputs = list(_fields(facts["inputs"], is_const=True))
    if weights:
        inputs.append("  const void *weights; /* the file of that name, aligned to 64 bytes */")
    parts = [
        f"/* Written by mlcc: the model {name} as a function. It calls nothing, and keeps nothing. */",
        f"#ifndef {upper}_H\n#define {upper}_H\n",
        "#include <stdint.h>\n",
        '#ifdef __cplusplus\nextern "C" {\n#endif\n',
        f"/* Bytes of the arena, aligned to {alignment}. */",
        f"#define {upper}_ARENA_BYTES {max(facts['arena_bytes'], 1)}",
        f"#define {upper}_ALIGNMENT {alignment}",
        "/* Bytes of the stack that a call takes at most. */",
        f"#define {upper}_STACK_BYTES {facts['stack_bytes']}",
    ]
    if weights:
        parts.append(f"#define {upper}_WEIGHT_BYTES {weights}")
    parts += [
        "\n/* Pointers to first elements; row-major unless strides, in elements, are told. */",
        _struct(f"{name}_inputs", inputs),
        _struct(f"{name}_outputs", _fields(facts["outputs"], is_const=False)),
        "/* 0, or why the model refuses its data. Any number of calls may run at a time, each with an arena. */",
        f"int {name}_run(const {name}_inputs *inputs, const {name}_outputs *outputs, void *arena);\n",
        _error_texts(name, facts["errors"]),
        f"#ifdef __cplusplus\n}}\n#endif\n\n#endif /* {upper}_H */\n",
    ]
    return "\n".join(parts)


def _struct(name: str, fields: Iterable[str]) -> str:
    lines = list(fields) or ["  const void *none; /* not read */"]
    return "\n".join([f"typedef struct {name} {{", *lines, f"}} {name};\n"])


def _fields(ports: Sequence[Mapping[str, Any]], *, is_const: bool) -> Iterable[str]:
    taken: set[str] = {"weights"}
    for port in ports:
        name = c_name(port["name"])
        while name in taken:
            name += "_"
        taken.add(name)
        const = "const " if is_const and not port["is_written"] else ""
        about = f"{port['dtype']} {list(port['sizes'])}"
        if port["strides"] != _row_major(port["sizes"]):
            about += f", strides {list(port['strides'])}"
        yield f"  {const}{_C_TYPES[port['dtype']]} *{name}; /* {about} */"


def _row_major(sizes: Sequence[int]) -> list[int]:
    strides = [1] * len(sizes)
    for d in reversed(range(len(sizes) - 1)):
        strides[d] = strides[d + 1] * max(sizes[d + 1], 1)
    return strides


def _error_texts(name: str, errors: Sequence[tuple[int, str]]) -> str:
    cases = [f"  case {status}: return {_literal(text)};" for status, text in errors]
    return "\n".join(
        [
            f"static inline const char *{name}_error_text(int status) {{",
            "  switch (status) {",
            '  case 0: return "no error";',
            *cases,
            '  default: return "no status of this model";',
            "  }",
            "}\n",
        ]
    )


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
