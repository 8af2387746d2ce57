"""The exceptions of mlcc. `_C` raises these very classes, so they exist before it is loaded."""


class Error(RuntimeError):
    """The caller can cure it: a bad option, an argument that does not fit, a build for another torch."""


class LoadError(Error):
    """A device's driver does not load compiled code: it is too old, broken, or its memory is full."""


class UnsupportedError(Error):
    """What the core was asked for is right, but it cannot do it; torch runs the graph."""


class InternalError(Error):
    """A bug in mlcc. The text names where; a reproducer is on disk where the text says so."""

    @property
    def headline(self) -> str:
        """The text without the program that did not compile: hundreds of lines, which a reproducer holds."""
        return str(self).partition("\nwhile compiling\n")[0]


class EagerFallbackWarning(UserWarning):
    """A graph, a call or a function runs eagerly as a whole: it is right, but nothing of it is compiled.

    Told once per reason, at the user's line, with what to do about it. Not told where the user asked for it (option
    `disable`), nor for single ops that are ATen calls inside of a compiled graph.
    """


class SideEffectError(Exception):
    """What a traced function does beside computing tensors, which its trace would not repeat; users see no such."""


class StaticInputWrittenError(Exception):
    """An argument that was promised to live for many calls is written by the function."""
