"""Errors of simulators, as text because an exception may be one that cannot be pickled."""

import traceback
from collections.abc import Callable

MAX_TEXT = 20_000
"""The longest text of an error, in characters; of longer ones the middle is left out."""


class SimulatorError(RuntimeError):
    """A simulator failed; the message names the environment.

    Args:
      kind: that of the exception that it raised (`worker.classify`), if that came as text.
      summary: the exception in short.
    """

    def __init__(self, message: str, kind: str | None = None, summary: str = ""):
        super().__init__(message)
        self.kind, self.summary = kind, summary


def message_in(error: BaseException) -> str | None:
    """Return the message of the `SimulatorError` that made a compiled program fail, if one did.

    Args:
      error: as JAX raised it, whose text has XLA's tracebacks around the message.
    """
    _, found, rest = str(error).partition("\nSimulatorError: ")
    return rest.partition("\n\n----------")[0] if found else None


def describe(error: BaseException) -> str:
    """Return the traceback of an error, as text that can be encoded."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # of its methods
        text = f"{type(error).__name__}, whose traceback cannot be printed"
    return shorten(text)


def shorten(text: str) -> str:
    """Return a text of at most `MAX_TEXT` characters that can be encoded."""
    if len(text) > MAX_TEXT:
        text = f"{text[: MAX_TEXT // 2]}\n[...]\n{text[-MAX_TEXT // 2 :]}"
    return text.encode("utf-8", "backslashreplace").decode()


def error_of_closing(close: Callable[[], object]) -> BaseException | None:
    """Call a simulator's `close`; return the error that it raised, which may be of any type."""
    try:
        close()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    return None


def cannot_draw(reason: object, summary: str) -> ValueError:
    """Return the error that a simulator failed to draw.

    Args:
      summary: of its exception (`worker.classify`).
    """
    if summary.strip() == "NotImplementedError:":  # as gymnasium.Env.render raises it
        return ValueError("this environment draws no pictures: it has no method render")
    return ValueError(
        "the simulator cannot draw on this machine (MuJoCo needs OpenGL: without a display set "
        f"MUJOCO_GL=egl, or osmesa with Debian's libosmesa6): {reason}"
    )


def lacks_pictures() -> ValueError:
    """Return the error that an environment was made without pictures."""
    return ValueError(
        "this environment draws no pictures: make it by env.for_rendering(); if a function of your "
        "own makes it, let the function take render_mode and hand it on"
    )
