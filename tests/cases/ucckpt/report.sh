# SPDX-License-Identifier: Apache-2.0
# Sourced by cases about the reports of ucckpt, after lib.sh: the last report is in
# $tmp/said.

# says REGEX...: each is a line of the report, but for blanks.
says() {
	local line
	for line; do
		tr -s ' \t' ' ' <"$tmp/said" | grep -q -x -e " \?$line" ||
			fail "no line '$line' in: $(cat "$tmp/said")"
	done
}

# problems N: so many are in the report.
problems() {
	check "$1 problems: $(cat "$tmp/said")" \
		test "$(grep -c '^problem: ' "$tmp/said")" = "$1"
}
