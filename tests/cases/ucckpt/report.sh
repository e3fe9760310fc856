# SPDX-License-Identifier: Apache-2.0
# Sourced after lib.sh by cases about reports of ucckpt: the last report is in $tmp/said.

# report COMMAND STATUS ARGUMENT...
report() {
	local status
	ucckpt "$1" "${@:3}" >"$tmp/said" 2>"$tmp/errors"
	status=$?
	check "$1 ${*:3}: exit status $status: $(cat "$tmp/said")" test $status = "$2"
	check "$1 ${*:3}: nothing on stderr" test ! -s "$tmp/errors"
}

# damaged CASE: copy it to $tmp/damaged, to be damaged.
damaged() {
	rm -rf "$tmp/damaged"
	cp -r "$good/$1/global_step4" "$tmp/damaged"
	cd "$tmp/damaged" || exit 1
}

# says REGEX...: check that each is a line of the report, ignoring repeated blanks.
says() {
	local line
	for line; do
		tr -s ' \t' ' ' <"$tmp/said" | grep -q -x -e " \?$line" ||
			fail "no line '$line' in: $(cat "$tmp/said")"
	done
}

# problems N: check the number of problems in the report.
problems() {
	check "$1 problems: $(cat "$tmp/said")" \
		test "$(grep -c '^problem: ' "$tmp/said")" = "$1"
}
