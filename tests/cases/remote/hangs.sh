#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A server that stops answering delays only its own readers: tags on the local disk in the same
# mount are listed, opened, read and closed at once.

# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/cases/remote/remote_lib.sh
. "$(dirname "$0")/remote_lib.sh"
require_curl
require python3
require_fuse
here=$(dirname "$(realpath "$0")")

mkdir "$tmp/near" "$tmp/run"
"$top_builddir/tests/programs/mkrun" "$tmp/run" 40 20000 || fail "mkrun"
cp -r "$tmp/run/global_step4" "$tmp/near/global_step5"
cp -r "$tmp/run/global_step4" "$tmp/run/global_step3"
echo global_step5 >"$tmp/near/latest"
rm -f "$tmp/run/latest"
ucckpt convert "$tmp/near/global_step5" "$tmp/whole" >/dev/null 2>&1 || fail "convert"
echo good >"$tmp/mode"
port=$(free_port)
python3 "$here/hostile.py" "$port" "$tmp" "$tmp/mode" 2>"$tmp/server.err" &
hostile=$!
servers+=("$hostile")
await "$port" "$hostile"

hanging=()
# hang COMMAND...: run it in the background, where it waits for the server.
hang() {
	"$@" >/dev/null 2>&1 &
	hanging+=("$!")
}

# A signal ends the server, and thus the processes that wait for it.
end_mount() {
	kill "$server"
	wait "$server"
	check "the server ends" test $? = 0
	server=
	wait "${hanging[@]}"
	hanging=()
	fusermount3 -u -z "$tmp/mnt" 2>/dev/null
}

# prompt "what is promised" COMMAND...: the command must end before the server answers.
prompt() {
	local pid
	"${@:2}" &
	pid=$!
	for _ in $(seq 100); do
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.1
	done
	if kill -0 "$pid" 2>/dev/null; then
		fail "$1 (${*:2})"
		hanging+=("$pid")
		end_mount
		finish
	fi
	wait "$pid" || fail "$1 (${*:2})"
}

all_prompt() {
	prompt "$1: the run is listed" ls "$tmp/mnt" >"$tmp/names"
	check "$1: with all tags" grep -q '^global_step4$' "$tmp/names"
	for name in global_step5 global_step5_universal global_step5_hf; do
		prompt "$1: $name is listed" ls "$tmp/mnt/$name" >/dev/null
	done
	prompt "$1: the local tag is read" diff -r "$tmp/whole" "$tmp/mnt/global_step5_universal"
	prompt "$1: so are its own files" diff -r "$tmp/near/global_step5" "$tmp/mnt/global_step5"
	prompt "$1: and the statistics" cat "$tmp/mnt/.ucfs/stats" >/dev/null
}

mount_fg "{$tmp/near,http://127.0.0.1:$port/switch/run}" -o deadline=300 || finish
param=$tmp/mnt/global_step4_universal/zero/block
# Open one of each rank, so that the others can be opened.
for i in 00 39; do
	prompt "the server's tag is read" cmp "$tmp/whole/zero/block.00$i.weight/fp32.pt" "$param.00$i.weight/fp32.pt"
done
echo stall >"$tmp/mode"

# Read another file each time, more of them than the mount has threads for local files.
for i in $(seq 10 39); do
	hang cat "$param.00$i.weight/exp_avg.pt"
done
for f in "$tmp/run/global_step3"/*.pt; do
	hang cat "$tmp/mnt/global_step3/${f##*/}"
done
sleep 1
all_prompt "readers hang"

# A tag is being planned.
hang ls "$tmp/mnt/global_step3_universal"
hang ls "$tmp/mnt/global_step3_hf"
sleep 1
all_prompt "a tag's first reader hangs"
# Even names cannot be read, but files in use are still served.
cd "$tmp/mnt/global_step5_universal/zero" || finish
exec 3<block.0039.weight/fp32.pt
echo dead >"$tmp/mode"
hang cat "$tmp/mnt/global_step4/${f##*/}"
sleep 3
prompt "nothing is answered: a local directory is listed" ls >/dev/null
for i in 10 11; do
	prompt "a file is opened" cmp "$tmp/whole/zero/block.00$i.weight/exp_avg.pt" "block.00$i.weight/exp_avg.pt"
done
prompt "an open one is read" cmp "$tmp/whole/zero/block.0039.weight/fp32.pt" /dev/fd/3
exec 3<&-
cd "$tmp" || finish

for pid in "${hanging[@]}"; do
	check "they hang until the end" kill -0 "$pid" 2>/dev/null
done
end_mount
finish
