#!/usr/bin/env bash
# The units of deploy/systemd are sound and closed to others, images do not run as root and are
# built from images that cannot change, and the package of a node holds what it promises and can be
# taken apart again.
#
# Packs what the tests built: only the packing is tried, and built alone the program would have
# other features.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v systemd-analyze >/dev/null || tests/install.sh systemd
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The programs are not installed here; a unit is as sound with another one in their place.
for unit in deploy/systemd/*.service; do
    sed 's|^ExecStart=/usr/bin/[^ ]*|ExecStart=/bin/true|' "$unit" > "$work/${unit##*/}"
done
complaints=$(systemd-analyze verify "$work"/*.service 2>&1 || true)
complaints=$(grep -F tidegate <<<"$complaints" || true)
if [ -n "$complaints" ]; then
    echo "systemd-analyze verify:" >&2
    echo "$complaints" >&2
    exit 1
fi

# What others on the machine could reach: files, and the services themselves.
for unit in deploy/systemd/*.service; do
    for line in UMask=0077 StateDirectoryMode=0700 NoNewPrivileges=yes ProtectSystem=strict; do
        grep -qx "$line" "$unit" || { echo "$unit lacks $line" >&2; exit 1; }
    done
    grep -q '^LimitNOFILE=' "$unit" || { echo "$unit lacks LimitNOFILE" >&2; exit 1; }
    # From 0 to 100, without starting it; 96 is a unit with no protection at all.
    systemd-analyze security --offline=true --threshold=35 "$work/${unit##*/}" > "$work/exposure" || {
        tail -n 1 "$work/exposure" >&2
        echo "$unit is open to more than before: systemd-analyze security --offline=true $unit" >&2
        exit 1
    }
done
for image in deploy/Dockerfile*; do
    user=$(sed -n 's/^USER //p' "$image" | tail -n 1)
    case "$user" in
        "" | root | 0 | 0:*) echo "$image runs as root" >&2; exit 1 ;;
    esac
done
# Images of others are named by digest: a tag can come to mean another.
named=$(sed -nE 's/^(FROM|ARG [A-Z]+_IMAGE=| +image:) *//p' deploy/Dockerfile* deploy/compose.yaml)
loose=$(grep -vE '^(\$\{[A-Z]+_IMAGE\}|tidegate$|.*@sha256:[0-9a-f]{64}$)' <<<"$named" || true)
if [ -n "$loose" ]; then
    echo "images without a digest:" >&2
    echo "$loose" >&2
    exit 1
fi

[ -x "${CARGO_TARGET_DIR:-target}/debug/tidegate-node" ] || cargo build --locked --workspace
deploy/deb.sh --profile dev --built --output "$work" tidegate-node
package=$(echo "$work"/tidegate-node_*.deb)
dpkg-deb --info "$package" > "$work/info"
dpkg-deb --extract "$package" "$work/root"
for file in usr/bin/tidegate-node etc/tidegate/agent.env usr/lib/systemd/system/tidegate-agent.service \
    usr/lib/sysusers.d/tidegate-node.conf; do
    [ -e "$work/root/$file" ] || { echo "the package lacks $file" >&2; exit 1; }
done
dpkg-deb --ctrl-tarfile "$package" | tar --extract --to-stdout ./postinst > "$work/postinst"
sh -n "$work/postinst"
if grep -q '#DEBHELPER#' "$work/postinst"; then
    echo "postinst holds an unfilled #DEBHELPER#" >&2
    exit 1
fi
"$work/root/usr/bin/tidegate-node" --version
# Each crate that is linked is named with its licence.
python3 - "$work/tidegate-node.cdx.json" <<'END'
import json, sys
bom = json.load(open(sys.argv[1]))
assert (bom["bomFormat"], bom["metadata"]["component"]["name"]) == ("CycloneDX", "tidegate-node"), bom["metadata"]
names = {it["name"] for it in bom["components"]}
assert {"tidegate-collect", "prost", "serde"} <= names and "proptest" not in names, sorted(names)
assert all(it.get("licenses") for it in bom["components"]), [it["name"] for it in bom["components"] if not it.get("licenses")]
END
