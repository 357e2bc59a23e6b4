"""The run book, deploy/README.md, has a section for each alert and for nothing else, each alert names its own, and
the flags and metrics that it speaks of exist.

Usage: runbook_test.py ATTEND_SERVER"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    text = (ROOT / "deploy" / "README.md").read_text()
    alerts = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    names = re.findall(r"^ *- alert: (\w+)$", alerts, re.MULTILINE)
    (chapter,) = re.findall(r"^## Alerts\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", chapter, re.MULTILINE | re.DOTALL))
    assert names and sorted(names) == sorted(sections), f"alerts {sorted(names)}, sections {sorted(sections)}"
    for name, body in sections.items():
        assert "**Do:**" in body, f"{name}: what it means, and no word of what to do"
    named = re.findall(r'^ *runbook: "deploy/README.md#(\w+)"$', alerts, re.MULTILINE)
    assert named == [name.lower() for name in names], f"alerts {names} name {named}"

    flags = set(re.findall(r"--[a-z][a-z-]+", subprocess.run([sys.argv[1], "--help"], capture_output=True, text=True,
                                                            check=True).stdout))
    spoken = set(re.findall(r"`(--[a-z][a-z-]+)", text))
    assert spoken and spoken <= flags, f"the server has no {sorted(spoken - flags)}"
    metrics = set(re.findall(r"\b(?:attend|grpc_server|process)_[a-z_]+", (ROOT / "server" / "README.md").read_text()))
    spoken = set(re.findall(r"`((?:attend|grpc_server|process)_[a-z_]+)", text))
    assert spoken and spoken <= metrics, f"the server has no {sorted(spoken - metrics)}"
    print(f"{len(names)} alerts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
