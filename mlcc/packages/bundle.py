"""Bundles: a model as an object file and a header, for programs that have no runtime, no files and no allocator."""

from __future__ import annotations

import os
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

# Of C to C23 and C++ to C++23, and macros that compilers define in their own dialects: no names of struct members.
_RESERVED = frozenset(
    [
        "alignas",
        "alignof",
        "and",
        "and_eq",
        "asm",
        "auto",
        "bitand",
        "bitor",
        "bool",
        "break",
        "case",
        "catch",
        "char",
        "char16_t",
        "char32_t",
        "char8_t",
        "class",
        "co_await",
        "co_return",
        "co_yield",
        "compl",
        "concept",
        "const",
        "const_cast",
        "consteval",
        "constexpr",
        "constinit",
        "continue",
        "decltype",
        "default",
        "delete",
        "do",
        "double",
        "dynamic_cast",
        "else",
        "enum",
        "explicit",
        "export",
        "extern",
        "false",
        "float",
        "for",
        "friend",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "mutable",
        "namespace",
        "new",
        "noexcept",
        "not",
        "not_eq",
        "nullptr",
        "operator",
        "or",
        "or_eq",
        "private",
        "protected",
        "public",
        "register",
        "reinterpret_cast",
        "requires",
        "restrict",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "static_assert",
        "static_cast",
        "struct",
        "switch",
        "template",
        "this",
        "thread_local",
        "throw",
        "true",
        "try",
        "typedef",
        "typeid",
        "typename",
        "typeof",
        "typeof_unqual",
        "union",
        "unsigned",
        "using",
        "virtual",
        "void",
        "volatile",
        "wchar_t",
        "while",
        "xor",
        "xor_eq",
        "NULL",
        "linux",
        "unix",
    ]
) | frozenset(_C_TYPES.values())


def c_name(text: str) -> str:
    """`text` as letters, digits and underscores that begin as an identifier of C does."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if name and not name[0].isdigit() else f"m_{name}"


def write(path: Path, facts: Mapping[str, Any]) -> list[Path]:
    """Writes PATH.o and PATH.h, and PATH.weights where the object holds none; what was written.

    Files that were there are replaced when all of the new ones are whole.
    """
    text = header(c_name(path.name), facts)
    contents = {".o": facts["object"], ".h": text.encode(), ".weights": facts["weights"]}
    written = {path.with_name(path.name + end): data for end, data in contents.items() if data}
    unfinished = {place: place.with_name(f"{place.name}.{os.getpid()}.tmp") for place in written}
    try:
        for place, data in written.items():
            unfinished[place].write_bytes(data)
        for place, temporary in unfinished.items():
            temporary.replace(place)
    finally:
        for temporary in unfinished.values():
            temporary.unlink(missing_ok=True)
    return list(written)


def header(name: str, facts: Mapping[str, Any]) -> str:
    """The header of a bundle: structs of its arguments and results, and its function."""
    upper = name.upper()
    alignment = facts["alignment"]
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
    taken = {"weights", *_RESERVED}
    for port in ports:
        name = c_name(port["name"])
        while name in taken:
            name += "_"
        taken.add(name)
        const = "const " if is_const and not port["is_written"] else ""
        about = f"{port['dtype']} {list(port['sizes'])}"
        if port["strides"] is not None:
            about += f", strides {list(port['strides'])}"
        yield f"  {const}{_C_TYPES[port['dtype']]} *{name}; /* {about} */"


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
