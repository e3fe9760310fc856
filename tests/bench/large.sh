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
needs_python
"$UCFS_DEEPSPEED_PYTHON" "${top_srcdir:-.}/tests/interop/make_sparse.py" \
	--times "${UCFS_BENCH_LARGE:-305}" "$source" "$work/large" \
	>"$work/log" 2>&1 || skip "no large checkpoint: $(tail -n 1 "$work/log")"
source=$work/large

mount_as crc=exact
bytes=$(du -sb --apparent-size "$view/zero" | cut -f1)
timed read find "$view/zero" -type f -exec cat {} + >/dev/null
add rss "$(proc "$server" status VmHWM)"
add anon "$(proc "$server" status RssAnon)"
unmount

header large
row "bytes that were read" "$bytes"
row_of "time" read ms
row "anonymous memory in the end (KiB)" "$(median anon)"
bar "resident memory while $((bytes / 1000000000)) GB are read (KiB)" "$(median rss)" \
	"<" 131072
