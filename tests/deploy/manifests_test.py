"""The kustomize overlays render, what they render fits Kubernetes' schemas (those of the oldest release that has
all it uses, 1.30: preStop sleep) and holds together: names, labels, ports, times. Custom resources have no schema
there. The server takes the configuration and the arguments of every pod. Compose's profiles are read by
podman-compose, and hold together.

Usage: manifests_test.py ATTEND_SERVER, with kubectl, kubernetes-validate and podman-compose on PATH"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

import yaml

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
CUSTOM = {"ServiceMonitor", "PrometheusRule"}


def groups(path):
    return yaml.safe_load(path.read_text())["groups"]


def run(*command, env=None):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=env)
    assert done.returncode == 0, f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}"
    return done.stdout


def check_files_named():
    """Every file beside a kustomization is used by it."""
    for path in KUBERNETES.glob("**/kustomization.yaml"):
        named = yaml.safe_load(path.read_text())
        files = {r for r in named.get("resources", []) if not r.startswith("..")}
        files |= {p["path"] for p in named.get("patches", [])}
        files |= {f for g in named.get("configMapGenerator", []) for f in g["files"]}
        there = {p.name for p in path.parent.iterdir() if p.is_file()} - {path.name}
        assert files == there, f"{path}: names {sorted(files)}, the folder holds {sorted(there)}"


def check_version(server):
    """Pods and Compose run the image of this version."""
    image = "attend:" + run(server, "--version").split()[1]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    images = {s["image"] for name, s in compose.items() if name.startswith("attend-")}
    images.add(Rendered(KUBERNETES / "base").container["image"])
    assert images == {image, image + "-cpu"}, images


def check_compose(server):
    """Each profile has one server, which takes its arguments and is where Prometheus looks for it."""
    if not shutil.which("podman"):
        print("compose: not read, since podman-compose does nothing without podman")
        return
    (scraped,) = [job["static_configs"][0]["targets"][0]
                  for job in yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
                  if job["job_name"] == "attend"]
    for profile in ("gpu", "cpu"):
        services = yaml.safe_load(run("podman-compose", "-f", DEPLOY / "compose.yaml", "--profile", profile,
                                      "config"))["services"]
        name = f"attend-{profile}"
        assert set(services) == {name, "prometheus", "grafana"}, sorted(services)
        run(server, *services[name]["command"], "--check-config")
        assert scraped.split(":")[0] in services[name]["networks"]["default"]["aliases"], scraped
        for service in services.values():
            assert all(port.startswith("127.0.0.1:") for port in service["ports"]), service["ports"]
            for volume in service.get("volumes", []):
                host = volume.split(":")[0]
                assert not host.startswith(".") or (DEPLOY / host).is_dir(), f"there is no {host}"


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(s|m)", text).groups()
    return int(number) * {"s": 1, "m": 60}[unit]


class Rendered:
    def __init__(self, folder):
        self.text = run("kubectl", "kustomize", folder)
        self.objects = list(yaml.safe_load_all(self.text))
        self.deployment = self.one("Deployment")
        self.pod = self.deployment["spec"]["template"]
        (self.container,) = self.pod["spec"]["containers"]

    def all(self, kind):
        return [o for o in self.objects if o["kind"] == kind]

    def one(self, kind):
        (found,) = self.all(kind)
        return found

    def check_schemas(self, folder):
        path = folder / "objects.yaml"
        path.write_text(yaml.safe_dump_all(o for o in self.objects if o["kind"] not in CUSTOM))
        run("kubernetes-validate", "--strict", "-k", "1.30", path)

    def check_references(self):
        labels = self.pod["metadata"]["labels"].items()
        services = self.all("Service")
        selectors = [self.deployment["spec"]["selector"]["matchLabels"], *(s["spec"]["selector"] for s in services),
                     self.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
                     self.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"]]
        for selector in selectors:
            assert selector and selector.items() <= labels, f"{selector} does not choose the pods' labels"
        namespaces = {o["metadata"].get("namespace") for o in self.objects if o["kind"] != "Namespace"}
        assert namespaces == {self.one("Namespace")["metadata"]["name"]}
        assert self.one("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"] == self.deployment["metadata"]["name"]
        assert self.pod["spec"]["serviceAccountName"] == self.one("ServiceAccount")["metadata"]["name"]
        (volume,) = self.pod["spec"]["volumes"]
        assert volume["configMap"]["name"] == self.one("ConfigMap")["metadata"]["name"]

        ports = {p["name"] for p in self.container["ports"]}
        probes = [self.container[p]["httpGet"]["port"] for p in ("startupProbe", "readinessProbe", "livenessProbe")]
        policed = [p["port"] for rule in self.one("NetworkPolicy")["spec"]["ingress"] for p in rule["ports"]]
        assert {*probes, *policed, *(p["targetPort"] for s in services for p in s["spec"]["ports"])} <= ports

        # One target a pod: a second service with the port would have each pod scraped twice.
        monitor = self.one("ServiceMonitor")["spec"]
        scraped = [s for s in services if monitor["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items()
                   and monitor["endpoints"][0]["port"] in {p["name"] for p in s["spec"]["ports"]}]
        assert len(scraped) == 1, f"{len(scraped)} services are scraped"
        # The job that rules and dashboards select.
        assert scraped[0]["metadata"]["labels"][monitor["jobLabel"]] == "attend"

    def check_drain(self):
        """A pod is not killed while it drains."""
        config = tomllib.loads(self.one("ConfigMap")["data"]["attend.toml"])
        drain = seconds(config["drain_delay"]) + seconds(config["drain_timeout"])
        stop = self.container["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert self.pod["spec"]["terminationGracePeriodSeconds"] > stop + drain

    def check_server_takes_it(self, server, folder):
        """The configuration file and the arguments, where the pod has them."""
        (mount,) = self.container["volumeMounts"]
        for name, content in self.one("ConfigMap")["data"].items():
            (folder / name).write_text(content)
        args = [a.replace(mount["mountPath"], str(folder)) for a in self.container["args"]]
        assert any(str(folder) in a for a in args), f"{args} name no file in {mount['mountPath']}"
        run(server, *args, "--check-config")

    def check_rules(self, folder):
        """One source: Kubernetes' copy says what Prometheus' files say."""
        rules = self.one("PrometheusRule")["spec"]
        assert rules["groups"] == groups(DEPLOY / "prometheus" / "rules.yml") + groups(DEPLOY / "prometheus" / "alerts.yml"), \
            "run deploy/kubernetes/generate"
        if shutil.which("promtool"):
            (folder / "rules.yml").write_text(yaml.safe_dump(rules))
            run("promtool", "check", "rules", folder / "rules.yml")


def check_tls(server):
    """An overlay with the component serves TLS with tokens, from the files of its secrets."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        here = os.path.relpath(KUBERNETES, folder.resolve())
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(
            {"resources": [f"{here}/overlays/cpu"], "components": [f"{here}/components/tls"]}))
        rendered = Rendered(folder)
        rendered.check_schemas(folder)
        assert {s["spec"]["ports"][0]["appProtocol"] for s in rendered.all("Service")} == {"https"}
        (folder / "attend.toml").write_text(rendered.one("ConfigMap")["data"]["attend.toml"])
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=attend", "-keyout", folder / "tls.key", "-out", folder / "tls.crt")
        (folder / "tokens").write_text("alice alices-secret-0123456789\n")

        def local(path):
            """The file that lies where the pod has it mounted."""
            mounts = {m["mountPath"] for m in rendered.container["volumeMounts"]}
            assert os.path.dirname(path) in mounts, f"{path} lies in none of {sorted(mounts)}"
            return str(folder / os.path.basename(path))

        environment = {e["name"]: e["value"] for e in rendered.container["env"]}
        environment = {k: local(v) if v.startswith("/") else v for k, v in environment.items()}
        (config,) = [a for a in rendered.container["args"] if a.startswith("--config=")]
        command = [server, "--config=" + local(config.removeprefix("--config="))]
        run(*command, "--check-config", env={**os.environ, **environment})
        printed = tomllib.loads(run(*command, "--print-config", env={**os.environ, **environment}))
        assert (printed["insecure"], printed["tls_cert"]) == (False, str(folder / "tls.crt")), printed
        (folder / "tls.key").write_text("")
        failed = subprocess.run([*command, "--check-config"], env={**os.environ, **environment}, capture_output=True)
        assert failed.returncode == 2


def main():
    server = sys.argv[1]
    check_files_named()
    check_version(server)
    check_compose(server)
    for overlay, device, gpus in (("gpu", "cuda", 1), ("cpu", "cpu", None)):
        rendered = Rendered(KUBERNETES / "overlays" / overlay)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            rendered.check_schemas(folder)
            rendered.check_references()
            rendered.check_drain()
            rendered.check_server_takes_it(server, folder)
            rendered.check_rules(folder)
        assert f"--device={device}" in rendered.container["args"]
        assert rendered.container["resources"]["limits"].get("nvidia.com/gpu") == gpus
        print(f"{overlay}: {len(rendered.objects)} objects")
    check_tls(server)
    return 0


if __name__ == "__main__":
    sys.exit(main())
