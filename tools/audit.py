"""Checks crates and packages for known faults, and crates for licences and sources: `make audit`.

Advisories come from outside, cargo-deny's from GitHub and pip-audit's from PyPI. A check that could not be made is
reported so, never as "nothing found", and fails with `--complete`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

DENY = "cargo-deny"
PIP_AUDIT = "pip-audit"


class Audit:
    """The outcome: findings end with an error, checks that could not be made are listed."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self.unchecked: list[str] = []

    def crates(self, deny: str) -> None:
        """Check the crates in Cargo.lock against deny.toml and the RustSec database."""
        own = ["licenses", "bans", "sources"]
        if subprocess.run([deny, "--locked", "check", *own], check=False).returncode:
            self.findings.append("crates: licences, bans or sources, see above")
        fetched = subprocess.run([deny, "--locked", "fetch", "db"], capture_output=True, text=True, check=False)
        if fetched.returncode:
            self.unchecked.append("advisories of crates: the RustSec database could not be fetched from GitHub")
        elif subprocess.run([deny, "--locked", "check", "--disable-fetch", "advisories"], check=False).returncode:
            self.findings.append("crates: advisories, see above")

    def packages(self, pip_audit: str, requirements: Path) -> None:
        """Check the pinned packages of a file."""
        command = [pip_audit, "--progress-spinner=off", "--disable-pip", "--require-hashes", "--format=json"]
        done = subprocess.run([*command, f"--requirement={requirements}"], capture_output=True, text=True, check=False)
        try:
            packages = json.loads(done.stdout)["dependencies"]
        except (json.JSONDecodeError, KeyError):
            reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
            self.unchecked.append(f"{requirements}: pip-audit failed: {reason}")
            return
        for package in packages:
            for fault in package.get("vulns", []):
                fixed = ", ".join(fault.get("fix_versions", [])) or "no version yet"
                known = f"{fault['id']}, fixed in {fixed}"
                self.findings.append(f"{requirements}: {package['name']} {package['version']}: {known}")
        skipped = [package["name"] for package in packages if "skip_reason" in package]
        if len(skipped) == len(packages) > 0:
            self.unchecked.append(f"{requirements}: all {len(packages)} packages: PyPI's advisories cannot be reached")
        elif skipped:
            self.unchecked.append(f"{requirements}: {len(skipped)} of {len(packages)} packages: {', '.join(skipped)}")

    def report(self, *, complete: bool) -> int:
        """Say what was found and what was not checked. Returns the exit status."""
        for title, lines in (("NOT CHECKED", self.unchecked), ("FOUND", self.findings)):
            for line in lines:
                print(f"{title}: {line}")
        if not self.findings:
            print("nothing found" + (" in what could be checked" if self.unchecked else ""))
        return 1 if self.findings or (complete and self.unchecked) else 0


def main(arguments: list[str] | None = None) -> int:
    """Run every check. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deny", default=DENY, help="the program cargo-deny")
    parser.add_argument("--pip-audit", default=PIP_AUDIT, help="the program pip-audit")
    parser.add_argument("--complete", action="store_true", help="fail if something could not be checked")
    parser.add_argument("requirements", nargs="*", type=Path, help="files of pinned packages")
    given = parser.parse_args(arguments)
    audit = Audit()
    audit.crates(given.deny)
    for requirements in given.requirements:
        audit.packages(given.pip_audit, requirements)
    return audit.report(complete=given.complete)


if __name__ == "__main__":
    sys.exit(main())
