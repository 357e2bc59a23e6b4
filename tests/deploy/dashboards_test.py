"""Every expression of the dashboards returns data from a real Prometheus that scrapes a
real server under load, every rule evaluates, what rules, alerts and dashboards select exists, and the dashboards are
what deploy/grafana/generate makes.

Usage: dashboards_test.py ATTEND_SERVER ATTEND"""

import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
VARIABLES = {"${datasource}": "", "$__rate_interval": "15s", "$job": "attend", "$instance": ".*",
             "$flops_ceiling": "784e12", "$hbm_ceiling": "4.3e12", "$pcie_ceiling": "55e9"}
# The free memory of the machine is not the CPU device's.
GPU_ONLY = {'attend_device_memory_bytes{kind="free",}'}
WAIT_SECONDS = 60


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def expressions():
    """(where, expression) of all dashboards, variables filled in."""
    found = []
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                expr = target["expr"]
                for name, value in VARIABLES.items():
                    expr = expr.replace(name, value)
                found.append((f"{path.name}: {panel['title']} {target['refId']}", expr))
    return found


def query(port, expr):
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': expr})}"
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return json.load(reply)["data"]["result"]
    except urllib.error.HTTPError as error:
        if error.code == 503:  # it is still starting
            return []
        raise SystemExit(f"Prometheus refuses: {expr}: {error.read().decode()}")
    except (urllib.error.URLError, ConnectionError):
        return []


def selectors(expr):
    """The series that an expression selects by name and labels; those of a list of values (=~"a|b") one by one."""
    for name, labels in re.findall(r"([a-z_][a-zA-Z0-9_:]*)\{([^{}]*)\}", expr):
        alternatives = [""]
        for label, operator, value in re.findall(r'(\w+)(=~|=|!=|!~)"([^"]*)"', labels):
            values = value.split("|") if operator == "=~" else [value]
            alternatives = [f'{a}{label}{operator}"{v}",' for a in alternatives for v in values]
        yield from (f"{name}{{{a}}}" for a in alternatives)


def lint():
    for path in (DEPLOY / "grafana" / "dashboards").glob("*.json"):
        board = json.loads(path.read_text())
        assert board["id"] is None and board["uid"], f"{path.name}: id null and a fixed uid"
        for panel in board["panels"]:
            if panel["type"] == "row":
                continue
            assert panel["description"], f"{path.name}: {panel['title']} has no description"
            assert panel["fieldConfig"]["defaults"]["unit"], f"{path.name}: {panel['title']} has no unit"
            assert all(t["legendFormat"] for t in panel["targets"]), f"{path.name}: {panel['title']} has no legend"


def wait_for(what, condition):
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.5)
    raise SystemExit(f"{what}: not within {WAIT_SECONDS} s")


def check_replay(http_port, folder):
    """Scrapes kept as files become a Prometheus's data, with every sample."""
    scrapes = folder / "scrapes"
    scrapes.mkdir()
    for _ in range(3):
        with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/metrics", timeout=10) as reply:
            (scrapes / f"{time.time():.3f}").write_bytes(reply.read())
    subprocess.run([DEPLOY / "grafana" / "replay", scrapes, folder / "replayed"], check=True)
    (folder / "replayed" / "wal").mkdir()  # which promtool expects
    dump = subprocess.run(["promtool", "tsdb", "dump", folder / "replayed"], check=True, capture_output=True, text=True).stdout
    samples = [line for line in dump.splitlines() if '__name__="attend_build_info"' in line]
    assert len(samples) == 3 and all('job="attend"' in line for line in samples), samples


def run(server_program, tool, folder, processes):
    ports = folder / "ports"
    processes.append(subprocess.Popen(
        [server_program, "--device=cpu", "--address=127.0.0.1:0", "--metrics-address=127.0.0.1:0",
         f"--port-file={ports}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    wait_for("the server's ports", lambda: ports.exists() and len(ports.read_text().split()) == 2)
    grpc_port, http_port = ports.read_text().split()

    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    config = config.replace("attend:9464", f"127.0.0.1:{http_port}").replace("5s", "1s")
    (folder / "prometheus.yml").write_text(config)
    for rules in ("rules.yml", "alerts.yml"):
        shutil.copy(DEPLOY / "prometheus" / rules, folder)
    port = free_port()
    processes.append(subprocess.Popen(
        ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
         f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    processes.append(subprocess.Popen(
        ["bash", "-c", f"for i in $(seq 100); do {tool} check --address=127.0.0.1:{grpc_port} || exit 1; done"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    wanted = expressions()
    missing = dict(wanted)

    def answered():
        for where in list(missing):
            if query(port, missing[where]):
                del missing[where]
        return not missing

    try:
        wait_for("data for every panel", answered)
    except SystemExit:
        for where, expr in missing.items():
            print(f"no data: {where}: {expr}")
        raise
    groups = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/rules", timeout=10))["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    bad = [f"{rule['name']}: {rule.get('lastError')}" for rule in rules if rule["health"] != "ok"]
    assert rules and not bad, f"rules that do not evaluate: {bad}"
    # A label value that the server never writes makes an alert that never fires.
    selected = {s for expr in [*(r["query"] for r in rules), *(e for _, e in wanted)] for s in selectors(expr)}
    absent = sorted(s for s in selected if s not in GPU_ONLY and not query(port, s))
    assert selected and not absent, f"no such series: {absent}"
    check_replay(http_port, folder)
    print(f"{len(wanted)} expressions and {len(rules)} rules answer, {len(selected)} selectors find series")


def main():
    if shutil.which("prometheus") is None:
        print("ATTEND-SKIPPED: prometheus is not installed")
        return 77
    lint()
    subprocess.run([sys.executable, DEPLOY / "grafana" / "generate", "--check"], check=True)
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            run(sys.argv[1], sys.argv[2], pathlib.Path(folder), processes)
        finally:
            for process in reversed(processes):
                process.terminate()
            for process in processes:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
