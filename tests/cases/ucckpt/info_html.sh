#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ucckpt info --html writes a self-contained page on which each box is full.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

# page STATUS ARGUMENT...: make a page.
page() {
	local status
	ucckpt info --html "$tmp/page" "${@:2}" >"$tmp/said" 2>&1
	status=$?
	check "${*:2}: exit status $status" test $status = "$1"
	check "${*:2}: nothing else is said: $(cat "$tmp/said")" test ! -s "$tmp/said"
	check "${*:2}: nothing is fetched" test "$(grep -ciE 'https?:|src=|href=|<script' "$tmp/page")" = 0
	if command -v python3 >/dev/null; then
		check "${*:2}: well-formed" python3 -c 'import sys, xml.dom.minidom as xml
xml.parse(sys.argv[1])' "$tmp/page"
	fi
}

has() {
	for text; do
		check "the page has '$text'" grep -q -F -e "$text" "$tmp/page"
	done
}

# Boxes are 1000 x 20, and their pieces do not overlap.  Print how many boxes are not full.
bad_boxes() {
	sed -n 's/.*<svg[^>]*>\(.*\)<\/svg>.*/\1/p' "$tmp/page" |
		awk '{
			n = split($0, rect, "<rect ")
			sum = 0
			for (i = 2; i <= n; i++) {
				split(rect[i], value, "\"")
				sum += value[6] * value[8]
			}
			if (sum < 19960 || sum > 20040)
				bad++
		}
		END { print bad + 0 }'
}

# Flat partitions, whole and on each rank; slices by rows and columns; experts; chunks.
while read -r source boxes; do
	page 0 "$good/$source"
	has '<h2>Views</h2>' '<h2>Parameters</h2>' '<h2>Which file has which elements</h2>'
	check "$source: $boxes boxes" test "$(grep -c '<svg' "$tmp/page")" = "$boxes"
	check "$source: each is full" test "$(bad_boxes)" = 0
done <<-END
	z1_fp32_dp2 17
	z3_tied_frozen_buffers_dp2 22
	meg_tp2_dp2_z1_fp32 30
	autotp2_llama_z3_dp1 21
	moe2_ep2_dp4_z1 21
	folded_tp2_ep2_dp2_z3 22
	dcp_hsdp_2x2_fp32 16
	hfdir_bin_sharded 4
END

# The title of a piece is its file and offset.
page 0 "$good/z3_bf16_dp2"
has '<title>bytes 8 to 12: bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt, from byte 4,292</title>'
page 0 "$good/meg_tp2_dp2_z1_fp32"
has '<title>columns 0 to 4, rows 0 to 8: ' '<h2>Warnings</h2>' '<h2>Tags of the run</h2>'

# Names are escaped as text.
mkdir "$tmp/names"
header='{"<b>&\"\u0007'"'"'":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
{
	printf "\\x$(printf %02x ${#header})\0\0\0\0\0\0\0"
	printf '%s' "$header"
	printf '\0\0\0\0\0\0\0\0'
} >"$tmp/names/model.safetensors"
page 0 "$tmp/names"
has "<th>&#60;b&#62;&#38;&#34;$(printf '\357\277\275')&#39;</th>"

# Damage is on the page, too.
cp -r "$good/z1_fp32_dp2/global_step4" "$tmp/damaged"
rm "$tmp/damaged/zero_pp_rank_1_mp_rank_00_optim_states.pt"
page 1 "$tmp/damaged"
has '<h2>Problems</h2>' zero_pp_rank_1_mp_rank_00_optim_states.pt

check "- is standard output" test "$(ucckpt info --html - "$good/z1_fp32_dp2" | head -n 1)" = \
	'<!DOCTYPE html>'
ucckpt info --html "$tmp/none/page" "$good/z1_fp32_dp2" >"$tmp/said" 2>&1
check "no such directory" test $? = 1
check "its message" grep -q -F "$tmp/none/page: cannot be written: No such file or directory" "$tmp/said"
ucckpt info --html - --json "$good/z1_fp32_dp2" >"$tmp/said" 2>&1
check "two formats are wrong usage" test $? = 2

finish
