#!/usr/bin/env bash
# Makes the vendored files anew: needs npm. Run it to take newer versions, then commit what it
# wrote; the program's build never runs it.
set -euo pipefail
cd "$(dirname "$0")"
vendor=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cp codemirror.entry.mjs "$work/entry.mjs"
cd "$work"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund --ignore-scripts --save-exact \
    uplot@1.6.32 esbuild@0.28.2 @codemirror/view@6.43.15 @codemirror/state@6.7.6 \
    @codemirror/commands@6.11.1 @codemirror/autocomplete@6.20.4 @codemirror/language@6.13.1 \
    @codemirror/lang-sql@6.10.0 @lezer/highlight@1.2.5
npx esbuild entry.mjs --bundle --format=esm --minify --legal-comments=none --target=es2022 \
    --outfile="$vendor/codemirror.js"
cp node_modules/uplot/dist/uPlot.iife.min.js "$vendor/uplot.js"
cp node_modules/uplot/dist/uPlot.min.css "$vendor/uplot.css"
cp node_modules/uplot/LICENSE "$vendor/uplot.LICENSE"
cp node_modules/@codemirror/view/LICENSE "$vendor/codemirror.LICENSE"

cd "$vendor"
sha256sum codemirror.js codemirror.LICENSE uplot.css uplot.js uplot.LICENSE >SHA256SUMS
