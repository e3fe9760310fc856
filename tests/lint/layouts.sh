#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every cell of the table of layouts in tests/good/README.md is a reference checkpoint:
# each that it names exists, has the cell's stage and dtype, and is refused exactly
# where the table says so.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../cases/lib.sh"

section() {
	awk '/^## Layouts/ { on = 1; next } /^## / { on = 0 } on' "${top_srcdir:?}/tests/good/README.md"
}

# is_of NAME KEY VALUE: true if the report of checkpoint NAME has KEY = VALUE or lacks KEY.
is_of() {
	ucckpt info --quick --json "$good/$1" |
		grep -q -E "^[[:space:]]\"$2\":[[:space:]]*(\"?$3\"?|\"unknown\"|null),"
}

# cell STAGE TYPE TEXT
cell() {
	local name=${3#(}
	name=${name%)}
	[ "$name" != - ] || return
	names=$((names + 1))
	check "$name is a reference checkpoint" test -d "$good/$name" -a -f "$good/$name.digests"
	if [ "$name" != "$3" ]; then
		check "$name is refused" grep -q '^refuse' "$good/$name.digests"
		return
	fi
	check "$name is not refused" test "$(grep -c '^refuse' "$good/$name.digests")" = 0
	if [ "$1" = 0 ]; then
		check "$name is without ZeRO" is_of "$name" source ".* without ZeRO .*"
	else
		check "$name is of stage $1" is_of "$name" stage "$1"
	fi
	check "$name is of $2" is_of "$name" module_dtype "$2"
}

names=0
while IFS='|' read -r _ _ stage float32 bfloat16 float16 _; do
	cell "$stage" float32 "$float32"
	cell "$stage" bfloat16 "$bfloat16"
	cell "$stage" float16 "$float16"
done < <(section | sed -n '/| [0-3] |/s/ *| */|/gp')
check "the table was read" test $names -gt 20

# Checkpoints named in the text below the table exist, too.
while read -r name; do
	check "$name is a reference checkpoint" test -f "$good/$name.digests"
	names=$((names + 1))
done < <(section | grep -v '^|' | grep -o '`[a-z0-9_.]*z[0-3]_[a-z0-9_]*`' | tr -d '`')
check "the text was read" test $names -gt 25
finish
