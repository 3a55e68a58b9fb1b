#!/usr/bin/env python3
"""Writes what a program is built from, as CycloneDX 1.5 JSON: each crate that is linked into it,
with version, licence, source and checksum, and which needs which.

    deploy/sbom.py PACKAGE > PACKAGE.cdx.json

Reads `cargo metadata` and Cargo.lock, and nothing from the network that building it would not.
"""
import json
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = "x86_64-unknown-linux-gnu"


def metadata():
    command = ["cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={TARGET}"]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def checksums():
    """Checksum of each crate of the registry, by name and version."""
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {(it["name"], it["version"]): it.get("checksum") for it in lock["package"]}


def linked(packages, name):
    """Ids of packages that `name` needs to be built or to run. Asked of `cargo tree`: metadata
    unites the features of the whole workspace, and with them what tests alone need."""
    command = ["cargo", "tree", "--locked", "--package", name, "--edges", "normal,build", "--target", TARGET,
               "--prefix", "none", "--format", "{p}"]
    lines = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    named = {tuple(line.split()[:2]) for line in lines if line}
    return {id for id, it in packages.items() if (it["name"], f"v{it['version']}") in named}


def needs(node):
    return [it["pkg"] for it in node["deps"] if any(kind["kind"] != "dev" for kind in it["dep_kinds"])]


def component(package, checksum):
    own = package["source"] is None
    url = f"pkg:cargo/{package['name']}@{package['version']}"
    told = {
        "type": "library",
        "bom-ref": url,
        "name": package["name"],
        "version": package["version"],
        "purl": url,
    }
    if package["license"]:
        # Old crates write MIT/Apache-2.0, which is no expression of SPDX.
        told["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if not own and checksum:
        told["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return told


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: deploy/sbom.py PACKAGE")
    data = metadata()
    packages = {it["id"]: it for it in data["packages"]}
    nodes = {it["id"]: it for it in data["resolve"]["nodes"]}
    roots = [id for id in data["workspace_members"] if packages[id]["name"] == sys.argv[1]]
    if not roots:
        sys.exit(f"{sys.argv[1]} is no package of this workspace")
    known, ids = checksums(), linked(packages, sys.argv[1])
    told = {id: component(packages[id], known.get((packages[id]["name"], packages[id]["version"]))) for id in ids}
    main_component = {**told[roots[0]], "type": "application"}
    libraries = sorted((told[id] for id in ids - {roots[0]}), key=lambda it: it["bom-ref"])
    dependencies = [
        {
            "ref": told[id]["bom-ref"],
            "dependsOn": sorted({told[need]["bom-ref"] for need in needs(nodes[id]) if need in told}),
        }
        for id in ids
    ]
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": main_component},
        "components": libraries,
        "dependencies": sorted(dependencies, key=lambda it: it["ref"]),
    }
    json.dump(bom, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
