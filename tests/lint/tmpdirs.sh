#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# No script continues without its temporary directory, and none removes files below a variable that
# may be empty: `rm -rf "$run/tag"` would remove /tag.
set -u
cd "${top_srcdir:-$(dirname "$0")/../..}" || exit 1

# complaints FILE...: print lines that break a rule.  The first rule ensures that variables that
# hold a temporary directory in any of the files are not empty.
complaints() {
	# shellcheck disable=SC2016 # awk's own $
	awk '
	function complain(text) { printf "%s:%d: %s\n", FILENAME, FNR, text }
	function is_recursive(part) {
		return part ~ /(^|[^A-Za-z_-])rm( +-[-A-Za-z]+)* +-[A-Za-z]*[rR]/
	}
	function removes_below_unknown(part,    name) {
		while (match(part, /[ "]\$([A-Za-z_0-9]+|{[A-Za-z_0-9]+(:?-[^}]*)?})"?\//)) {
			name = substr(part, RSTART, RLENGTH)
			part = substr(part, RSTART + RLENGTH)
			sub(/:?-.*/, "", name)
			gsub(/[^A-Za-z_0-9]/, "", name)
			if (!(name in made))
				return 1
		}
		return 0
	}
	FNR == 1 { pass += FILENAME == ARGV[1] }
	pass == 1 {
		if (match($0, /[A-Za-z_]+="?\$\(mktemp/))
			made[substr($0, RSTART, index(substr($0, RSTART), "=") - 1)]
		next
	}
	{ line = joined $0; joined = "" }
	line ~ /\\$/ { joined = substr(line, 1, length(line) - 1); next }
	line ~ /^[ \t]*#/ { next }
	line ~ /="?(`|\$\()mktemp/ && line !~ /\|\| *(exit|return)/ {
		complain("mktemp may fail: add || exit 1")
	}
	line ~ /(local|export|readonly|declare) [A-Za-z_]+="?\$\(mktemp/ {
		complain("the status of mktemp is lost: assign on a line of its own")
	}
	{
		n = split(line, part, /[;&|]+/)
		for (i = 1; i <= n; i++)
			if (is_recursive(part[i]) && removes_below_unknown(part[i]))
				complain("the variable may be empty: write ${name:?}/...")
	}' "$@" "$@"
}

found=$(mktemp) || exit 1
trap 'rm -f "$found"' EXIT

# Check that the rules can fail.
lines=$(complaints tests/lint/tmpdirs.bad | cut -d: -f2 | tr '\n' ' ')
wanted=$(grep -n '# bad$' tests/lint/tmpdirs.bad | cut -d: -f1 | tr '\n' ' ')
if [ -z "$wanted" ] || [ "$lines" != "$wanted" ]; then
	echo "tests/lint/tmpdirs.bad: lines $wanted are bad, found: $lines"
	exit 1
fi

# Folders of a checkout or of an unpacked archive.
dirs=(bootstrap examples packaging tests)
mapfile -t scripts < <({
	find "${dirs[@]}" -name '*.sh'
	grep -rlIE --exclude-dir=good '^#!.*[/ ](ba|da)?sh( |$)' "${dirs[@]}"
} | sort -u)
complaints "${scripts[@]}" >"$found"
cat "$found"
echo "${#scripts[@]} scripts looked at"
[ "${#scripts[@]}" -gt 100 ] && [ ! -s "$found" ]
