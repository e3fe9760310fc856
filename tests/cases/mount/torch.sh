#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Debian's torch loads the files of a mount: states and weights, in one file and in several, equal
# those of the training processes (good/README.md).
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
sanitized_by mount/run mount/weights
require_fuse
python=/usr/bin/python3
"$python" -c 'import torch' 2>"$tmp/why" || skip "no torch for $python: $(tail -n 1 "$tmp/why")"

# all_of "what" PATTERN: torch has loaded every line of the case that PATTERN
# selects, and there is at least one
all_of() {
	sed -n "$2" "$good/$name".{digests,weights} | sort >"$tmp/want"
	check "$name$options: $1: there are some" test -s "$tmp/want"
	check "$name$options: $1" diff "$tmp/want" <(comm -12 "$tmp/loaded" "$tmp/want")
}

for name in z1_tied_frozen_buffers_dp2 z3_bf16_dp2; do
	tag=$(tag_of "$name")
	for options in "" hf_shard_size=0.5KB; do
		split=${options:+-split}
		mount_fg "$good/$name" ${options:+-o "$options"} || continue
		"$python" "$top_srcdir/tests/cases/mount/loadtorch.py" \
			"$tmp/mnt/${tag}_universal" "$tmp/mnt/${tag}_fp32/"*.bin \
			>"$tmp/printed" || fail "$name$options: torch.load"
		sort "$tmp/printed" >"$tmp/loaded"
		unmount
		all_of states 's/^truth /truth /p'
		all_of weights 's/^truth \(.* fp32 \)/weight \1/p'
		all_of files "s/^tensors fp32$split /tensors /p"
	done
done
finish
