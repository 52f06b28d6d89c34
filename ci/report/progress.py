"""Progress of long work: live lines on a terminal, one plain line per event in a log."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress as RichProgress
from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class Narrator(Protocol):
    """Hears what a run does. Calls may come from several threads."""

    def say(self, text: str) -> None:
        """Something happened."""

    def begin(self, name: str, text: str) -> None:
        """Work called ``name`` has begun."""

    def end(self, name: str, text: str) -> None:
        """Work called ``name`` has ended."""


class PlainNarrator:
    """One line per event with the seconds since the start; for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Print the line."""
        with self._lock:
            seconds = time.monotonic() - self._started
            self._console.print(f"{seconds:7.1f} s  {escape(text)}", soft_wrap=True)

    def begin(self, name: str, text: str) -> None:
        """Print the line."""
        self.say(f"{name}: {text}")

    def end(self, name: str, text: str) -> None:
        """Print the line."""
        self.say(f"{name}: {text}")


class LiveNarrator:
    """A live line with a clock for everything that is running; for terminals."""

    def __init__(self, console: Console) -> None:
        self._progress = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> LiveNarrator:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print the line above the live ones."""
        self._progress.console.print(escape(text), soft_wrap=True)

    def begin(self, name: str, text: str) -> None:
        """Add a live line."""
        with self._lock:
            self._tasks[name] = self._progress.add_task(
                f"{escape(name)}: {escape(text)}", total=None
            )

    def end(self, name: str, text: str) -> None:
        """Replace the live line with a lasting one."""
        with self._lock:
            task = self._tasks.pop(name, None)
        if task is not None:
            self._progress.remove_task(task)
        self.say(f"{name}: {text}")
