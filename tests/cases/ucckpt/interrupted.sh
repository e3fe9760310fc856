#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Long work shows its progress and the time left on a terminal; after a signal the last line says
# what remains on disk and how to resume.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/cases/far_lib.sh
. "$(dirname "$0")/../far_lib.sh"
command -v script >/dev/null || skip "no script, which makes a terminal"

mkdir "$tmp/run"
"$top_builddir/tests/programs/mkrun" "$tmp/run" 12 100000 4 || fail "mkrun"
mkdir "$tmp/run/ranks"
"$top_builddir/tests/programs/mkrun" "$tmp/run/ranks" 12 100 40 || fail "mkrun of 40 ranks"
ucckpt pack -o "$tmp/run/tag.ucpack" "$tmp/run/global_step4" >/dev/null || fail "pack"
"$slowfs" -d 50000 -n 1 "$tmp/run" "$far" || fail "slowfs"
out=$tmp/out

# COMMAND | the meter's line up to the time left | SIGNAL | EXIT STATUS | the last line
while IFS='|' read -r words line signal status said; do
	line+='  [0-9:]+:[0-5][0-9] left'
	rm -rf "$out" "$tmp"/.out.tmp-* "$tmp/said"
	# shellcheck disable=SC2016 # $$ is of the inner shell
	"${default_signals[@]}" script -qefc 'echo $$ >"'"$tmp/pid"'"; exec ucckpt '"$words" "$tmp/said" \
		>/dev/null </dev/null &
	script=$!
	for _ in $(seq 600); do
		grep -aqE "$line" "$tmp/said" 2>/dev/null && break
		kill -0 $script 2>/dev/null || break
		sleep 0.05
	done
	check "$words: the time left" grep -aqE "$line" "$tmp/said"
	! kill -0 $script 2>/dev/null || kill -"$signal" "$(cat "$tmp/pid")"
	wait $script
	check "$words: exit status $status" test $? = "$status"
	check "$words: '$said': $(tr '\r' '\n' <"$tmp/said" | tail -n 4)" \
		grep -aqE "ucckpt: $said.?$" "$tmp/said"
done <<END
convert '$far/global_step4' '$out'|B/s|TERM|1|$out: interrupted by Terminated; (files are kept .*, and the same command goes on|nothing was written; the same command begins again)
extract '$far' 'global_step4_universal' '$out'|B/s|INT|1|$out: interrupted by Interrupt; files that are complete are left there, and the same command goes on
pack -o '$out' '$far/global_step4'|B/s|HUP|1|$out: interrupted by Hangup; nothing was left there; the same command begins again
unpack -o '$out' '$far/tag.ucpack'|B/s|INT|1|$out: interrupted by Interrupt; nothing was left there; the same command begins again
unpack --check '$far/tag.ucpack'|B/s|INT|1|$far/tag.ucpack: interrupted by Interrupt; nothing was left there; the same command begins again
check --data '$far/global_step4'|B/s|INT|1|check: interrupted by Interrupt; nothing was written; the same command begins again, and --part I/N checks a part
info '$far/ranks'|shards: .* of 39|INT|130|interrupted; nothing was written
diff '$far/global_step4' '$far/global_step4'|comparing parameters: .* of 12|INT|2|diff: interrupted by Interrupt; nothing was written; the same command begins again
END

# Interrupt before anything is written.
rm -rf "$out" "$tmp"/.out.tmp-*
"${default_signals[@]}" ucckpt convert "$far/global_step4" "$out" 2>"$tmp/said" &
pid=$!
for _ in $(seq 600); do
	grep -q 'SigCgt:.*[2367abef]$' "/proc/$pid/status" && break # the process catches SIGINT; sanitizers catch other signals
	sleep 0.01
done
kill -INT $pid
wait $pid
check "early: ended by the signal" test $? = 130
check "early: nothing was written: $(cat "$tmp/said")" grep -q "^ucckpt: interrupted; nothing was written$" "$tmp/said"
check "early: nothing is there" test -z "$(find "$tmp" -maxdepth 1 -name '*out*')"
finish
