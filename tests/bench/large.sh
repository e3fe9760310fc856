#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The server's memory while every byte of a checkpoint much larger than the machine's
# memory is read; its shards are sparse files.  Takes minutes.
#
# UCFS_BENCH_LARGE	size as a multiple of UCFS_BENCH_DIR (305: more than 500 GB with
# 			the usual one)
. "${BASH_SOURCE%/*}/lib.sh"
begin
[ -n "${UCFS_DEEPSPEED_PYTHON:-}" ] || skip "UCFS_DEEPSPEED_PYTHON is not set"
"$UCFS_DEEPSPEED_PYTHON" "${top_srcdir:-.}/tests/interop/make_sparse.py" \
	--times "${UCFS_BENCH_LARGE:-305}" "$source" "$work/large" \
	>"$work/log" 2>&1 || skip "no large checkpoint: $(tail -n 1 "$work/log")"
source=$work/large

for how in no_cache crc=zero; do
	mount_as "$how"
	bytes=$(du -sb --apparent-size "$view/zero" | cut -f1)
	timed "$how" find "$view/zero" -type f -exec cat {} + >/dev/null
	add "$how.rss" "$(proc "$server" status VmHWM)"
	add "$how.anon" "$(proc "$server" status RssAnon)"
	unmount
done

header large
row "bytes that were read, each time" "$bytes"
for how in no_cache crc=zero; do
	row_of "read with -o $how" "$how" ms
	row "anonymous memory in the end (KiB)" "$(median "$how.anon")"
done
what="resident memory while $((bytes / 1000000000)) GB are read"
bar "$what, streamed (KiB)" "$(median stream.rss)" "<" 131072
figure "$what, and files assembled (KiB)" "$(median crc=zero.rss)"
