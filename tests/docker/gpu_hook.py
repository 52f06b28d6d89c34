"""A stand-in for NVIDIA's runtime hook: it keeps what it is told, and brings nothing in."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

HOOK = "nvidia-container-runtime-hook"


@dataclass(frozen=True)
class RecordingHook:
    """The hook in ``folder``, which a daemon has at the front of its PATH."""

    folder: Path

    @classmethod
    def write(cls, folder: Path) -> RecordingHook:
        """The program in ``folder``."""
        made = cls(folder)
        program = folder / HOOK
        program.write_text(
            f"#!{sys.executable}\n"
            "import json, pathlib, sys\n"
            "assert sys.argv[1:] == ['prestart'], sys.argv\n"
            "bundle = pathlib.Path(json.load(sys.stdin)['bundle'])\n"
            "config = json.loads((bundle / 'config.json').read_text('utf-8'))\n"
            f"with open({str(made.calls)!r}, 'a', encoding='utf-8') as sink:\n"
            "    print(json.dumps(config['process']['env']), file=sink)\n"
        )
        program.chmod(0o755)
        return made

    @property
    def calls(self) -> Path:
        """Where it keeps them."""
        return self.folder / "calls"

    def asked(self) -> list[dict[str, str]]:
        """The variables of each container that it was called for."""
        lines = self.calls.read_text("utf-8").splitlines() if self.calls.exists() else []
        return [dict(entry.split("=", 1) for entry in json.loads(line)) for line in lines]
