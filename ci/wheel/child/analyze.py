"""Ask auditwheel's own analysis which platform tag a wheel deserves; print the answer as JSON.

Usage: ``python analyze.py WHEEL [--graft] [--exclude PATTERN]...``

This runs in its own process because the analysis changes the working folder and keeps a cache per path.
``auditwheel show`` cannot be used for it: it takes no excludes, so every wheel that leaves CUDA outside
is "linux" to it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from auditwheel.error import NonPlatformWheelError
from auditwheel.wheel_abi import analyze_wheel_abi


def analyze(wheel: Path, exclude: frozenset[str], graft: bool) -> dict[str, Any]:
    """The tag and the libraries that it needs from outside, as JSON-ready values."""
    try:
        found = analyze_wheel_abi(
            None,
            None,
            wheel,
            exclude,
            disable_isa_ext_check=False,
            allow_graft=graft,
            requested_policy_base_name="auto" if graft else None,
        )
    except NonPlatformWheelError as error:
        return {"platforms": ["any"], "external": {}, "allowed": [], "notes": [str(error.message)]}
    overall, policies = found.overall_policy, found.policies
    is_linux = overall == policies.linux
    # With the tag "linux" nothing counts as external; the lowest policy shows what is in the way.
    shown = found.external_refs[policies.lowest.name if is_linux else overall.name]
    return {
        "platforms": [overall.name, *overall.aliases],
        "external": {
            name: str(path) if path else None for name, path in sorted(shown.libs.items())
        },
        "allowed": sorted(policies.lowest.whitelist if is_linux else overall.whitelist),
        "notes": _notes(found) if is_linux else [],
    }


def _notes(found: Any) -> list[str]:
    linux = found.policies.linux
    reasons = {
        "it needs symbol versions newer than any manylinux policy": found.sym_policy,
        "it uses black-listed symbols": found.blacklist_policy,
        "it needs instructions beyond the baseline of the architecture": found.machine_policy,
        "it is built for a narrow-unicode Python": found.ucs_policy,
        "it uses PyFPE_jbuf": found.pyfpe_policy,
        "it needs libraries from outside": found.ref_policy,
    }
    return [reason for reason, policy in reasons.items() if policy == linux]


def main() -> int:
    """Read the arguments, print JSON on stdout."""
    parser = argparse.ArgumentParser(description="platform tag of a wheel")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--graft", action="store_true")
    parser.add_argument("--exclude", action="append", default=[])
    arguments = parser.parse_args()
    answer = analyze(arguments.wheel, frozenset(arguments.exclude), arguments.graft)
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
