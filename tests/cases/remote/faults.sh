#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Servers that stall, close, truncate, lie and change: reads return the right bytes, or fail soon
# with the reason.  Unmounting always works.

# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/cases/remote/remote_lib.sh
. "$(dirname "$0")/remote_lib.sh"
require_curl
require python3
here=$(dirname "$(realpath "$0")")

mkdir "$tmp/run"
"$top_builddir/tests/programs/mkrun" "$tmp/run" 2 200000 || fail "mkrun"
tag=global_step4
echo good >"$tmp/mode"
port=$(free_port)
start() {
	python3 "$here/hostile.py" "$port" "$tmp" "$tmp/mode" 2>"$tmp/server.err" &
	hostile=$!
	servers+=("$hostile")
	await "$port" "$hostile"
}
start
ucckpt convert "$tmp/run" "$tmp/whole" >/dev/null 2>&1 || fail "convert of the local run"

# Failures have a deadline of one second; a minute would be a hang.
convert() {
	timeout 60 ucckpt -o "deadline=$2" convert --num_extract_workers 4 \
		"http://127.0.0.1:$port/$1/run" "$tmp/$1.tree" >"$tmp/$1.out" 2>&1
	echo $? >"$tmp/$1.rc"
}

# MODE|expected message, or none if the bytes are finally right
modes='good
short
close_once
busy_once
error_once
stall|not read within 1 s: .*\(Timeout\|timed out\|slow\)
stall_body|not read within 1 s:
close|not read within 1 s:
close_body
busy|not read within 1 s: HTTP status 429
elsewhere|the server answered another range than asked
another_size|the server answered another range than asked
too_much|\(the server sent more than was asked\|not read within 1 s\)
whole|the server does not answer ranges
changed|was replaced since it was planned
changed_later|was replaced since it was planned
precondition|was replaced since it was planned (HTTP status 412)
unnamed|was replaced since it was planned
gone|HTTP status 404
redirect|\(Protocol\|redirect\)
loop|\(Maximum\|redirect\)
garbage|HTTP/0.9'
pids=
while IFS='|' read -r mode words; do
	convert "$mode" "$([ -n "$words" ] && echo 1 || echo 30)" &
	pids="$pids $!"
done < <(printf '%s\n' "$modes")
# shellcheck disable=SC2086 # a list
wait $pids
while IFS='|' read -r mode words; do
	rc=$(cat "$tmp/$mode.rc")
	if [ "$rc" = 0 ]; then
		check "$mode: the bytes are right" diff -r "$tmp/whole" "$tmp/$mode.tree"
		[ -z "$words" ] || fail "$mode: succeeds"
	else
		check "$mode: fails in time, and so on purpose" test "$rc" = 1
		[ -n "$words" ] || fail "$mode: $(cat "$tmp/$mode.out")"
		check "$mode: says why and names the URL" grep -q "http://127.0.0.1:$port/$mode/run.*$words" "$tmp/$mode.out"
		check "$mode: leaves nothing" test ! -e "$tmp/$mode.tree"
	fi
done < <(printf '%s\n' "$modes")

# A minute would be a hang.
pages='same_token|600|pages without end
same_names|600|pages without end
no_names|600|pages without end
slow_pages|1|not read within 1 s
busy_pages|1|not read within 1 s'
# list TOOL MODE SECONDS: check the tool's message about an endless list; runs in parallel with the
# others.
list() {
	local options=deadline=$3,s3_anonymous,s3_endpoint=http://127.0.0.1:$port
	mkdir -p "$tmp/$1-$2"
	if [ "$1" = ucfs ]; then
		timeout 60 ucfs "s3://$2/run" "$tmp/$1-$2" -o "$options"
	else
		timeout 60 ucckpt -o "$options" info "s3://$2/run"
	fi >"$tmp/$1-$2.out" 2>&1
	echo $? >"$tmp/$1-$2.rc"
}
tools=ucckpt
[ ! -x "$top_builddir/ucfs" ] || tools='ucckpt ucfs'
pids=
for tool in $tools; do
	while IFS='|' read -r mode seconds _; do
		list "$tool" "$mode" "$seconds" &
		pids="$pids $!"
	done <<<"$pages"
done
# shellcheck disable=SC2086 # a list
wait $pids
for tool in $tools; do
	while IFS='|' read -r mode _ words; do
		check "$tool $mode: fails in time, and so on purpose" test "$(cat "$tmp/$tool-$mode.rc")" = 1
		check "$tool $mode: says why: $(cat "$tmp/$tool-$mode.out")" \
			grep -q "s3://$mode/run.*$words" "$tmp/$tool-$mode.out"
	done <<<"$pages"
done

# Through a mount.
require_fuse

# The fault occurs between the first requests of a mount, and during its parallel requests.
pids=
for n in 0 1 2 4 6 8 10 12; do
	mkdir "$tmp/mnt$n"
	{
		timeout 60 ucfs "http://127.0.0.1:$port/after_$n/run" "$tmp/mnt$n" -o deadline=2 2>"$tmp/after_$n.out"
		echo $? >"$tmp/after_$n.rc"
	} &
	pids="$pids $!"
done
# shellcheck disable=SC2086 # a list
wait $pids
for n in 0 1 2 4 6 8 10 12; do
	check "after $n requests: no mount of a server that stalls" test "$(cat "$tmp/after_$n.rc")" = 1
	check "and the reason: $(cat "$tmp/after_$n.out")" grep -q "/after_$n/run.*not read within 2 s" "$tmp/after_$n.out"
	# The server gets two requests for a file within the deadline; attributes fail at once.
	check "it is not asked for long: $(wc -l <"$tmp/after_$n")" test "$(wc -l <"$tmp/after_$n")" -le 6
done

url=http://127.0.0.1:$port/switch/run
param=$tmp/mnt/${tag}_universal/zero/block.0000.weight/fp32.pt
want=$tmp/whole/zero/block.0000.weight/fp32.pt

mount_remote "$url" -o deadline=30
stop_server "$hostile"
cat "$param" >"$tmp/read" &
reader=$!
sleep 2
check "a reader waits for a server that is away for two seconds" kill -0 "$reader"
start
wait "$reader"
check "and reads it when it comes back" cmp "$want" "$tmp/read"
unmount

mount_remote "$url" -o deadline=2
stop_server "$hostile"
timeout 30 cat "$param" >"$tmp/read" 2>"$tmp/out"
check "one that is away for longer fails" grep -q "Input/output error" "$tmp/out"
check "and the log says why" grep -q "$url/$tag/.*not read within 2 s" "$tmp/log"
check "and it can be unmounted" fusermount3 -u "$tmp/mnt"
wait "$server"
server=
start

mount_remote "$url" -o deadline=2
echo stall >"$tmp/mode"
timeout 30 cat "$param" >"$tmp/read" 2>"$tmp/out"
check "a read that stalls fails" grep -q "Input/output error" "$tmp/out"
check "and the log says why" grep -q "$url/$tag/.*not read within 2 s" "$tmp/log"
cat "$param" >/dev/null 2>&1 &
reader=$!
sleep 0.3
check "it can be unmounted meanwhile" fusermount3 -u -z "$tmp/mnt"
wait "$reader"
wait "$server"
check "and the server ends" test $? = 0
server=

echo good >"$tmp/mode"
mount_remote "$url" -o deadline=600
echo stall >"$tmp/mode"
cat "$param" >/dev/null 2>&1 &
reader=$!
sleep 0.3
kill "$server"
(sleep 30; kill -9 "$server") 2>/dev/null &
guard=$!
wait "$server"
check "a signal ends it before the deadline" test $? = 0
server=
kill "$guard"
wait "$reader"
fusermount3 -u -z "$tmp/mnt" 2>/dev/null

echo good >"$tmp/mode"
mount_remote "$url"
f=$(basename "$tmp/run/$tag"/*_rank_0_*_optim_states.pt)
cp "$tmp/run/$tag/$f" "$tmp/saved"
tr '\0' '\1' <"$tmp/saved" >"$tmp/run/$tag/$f"
cat "$param" >"$tmp/read" 2>/dev/null && ! cmp -s "$want" "$tmp/read" &&
	fail "a file of another generation was read"
unmount
finish
