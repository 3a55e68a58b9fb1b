#!/usr/bin/env bash
# The units of deploy/systemd are sound, and the package of a node holds what it promises and can be
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
