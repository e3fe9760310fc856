#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The mount serves every reference file byte for byte, knows its size before any
# read, and has no other files.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse

good_lists
while read -r name tag; do
	mount_fg "$good/$name/$tag" || continue
	cd "$tmp/mnt" || exit 1
	# Check sizes before anything is read.
	find . -type f -printf "%s $name/%P\n" >>"$tmp/found"
	check "$name: the converter's bytes" sha256sum --quiet -c "$tmp/lists/$name.sums"
	cd "$tmp" || exit 1
	unmount
done <"$tmp/lists/cases"
good_compare "$tmp/found"
finish
