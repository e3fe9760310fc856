#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The output of ucckpt is safe to show: UTF-8 without characters that drive a terminal, whatever
# names a checkpoint has.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

# checks NAME: check that stdout and stderr of the last command are clean.
checks() {
	local out
	for out in said errors; do
		iconv -f UTF-8 -t UTF-8 "$tmp/$out" >/dev/null ||
			fail "$1: $out is not UTF-8"
		! LC_ALL=C.UTF-8 grep -qP '(?!\t)[\x00-\x1f\x7f-\x9f\x{202a}-\x{202e}\x{2066}-\x{2069}]' \
			"$tmp/$out" || fail "$1: control characters in $out"
	done
}

# run NAME COMMAND ARGUMENT...: run it; any status is right, except a signal's.
run() {
	local name=$1 status
	shift
	ucckpt "$@" >"$tmp/said" 2>"$tmp/errors"
	status=$?
	check "$name: $1: exit status" test $status -lt 3
	checks "$name: $1"
}

# Replace the parameter name "cube" in pickles by one of the same length.
n=0
for name in '\xc2\x9b2J' '\xff\xfeab' '\xe2\x80\xaeb' '\xed\xa0\x80x' '\n\x1b[J' '\x7f\x07\x08\x0d'; do
	n=$((n + 1))
	run=$tmp/run$n
	cp -r "$good/z1_fp32_dp2" "$run"
	chmod -R u+w "$run"
	LC_ALL=C sed -i "s/cube/$name/g" "$run"/global_step4/*.pt
	for command in info check "info --json" "check --json" "diff --json $good/z1_fp32_dp2"; do
		# shellcheck disable=SC2086 # two words
		run "$name" $command "$run"
		case $command in *json*)
			check "$name: $command: JSON" test "$(head -c 1 "$tmp/said")" = "{" ;;
		esac
	done
	run "$name" convert "$run" "$tmp/out$n"
done
LC_ALL=C grep -q -a 'cube' "$run"/global_step4/*.pt && fail "names are as they were"

# Replace names of tags and files.
tag=$'step\xc2\x9b\xe2\x80\xae\xff\n4'
cp -r "$good/z1_fp32_dp2" "$tmp/tags"
chmod -R u+w "$tmp/tags"
mv "$tmp/tags/global_step4" "$tmp/tags/$tag"
for latest in "$tag" $'\xff\xfe' $'a\x1b[2Jb'; do
	printf '%s' "$latest" >"$tmp/tags/latest"
	run "tag" info "$tmp/tags"
	run "tag" info --json "$tmp/tags"
	run "tag" check --json "$tmp/tags"
	run "tag" convert "$tmp/tags" "$tmp/out"$'\x1b'"$RANDOM"
	run "tag" info "$tmp/tags/$tag"
	run "tag" info "$tmp/tags/$tag/none"
done

finish
